"""Edge servers without a broker: stands between the run and a fleet of this machine, and pools as edges do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.messages import BlobRef, Dismiss, Refusal, SumAsk, Task, Update
from fedwright.protocol.support.files import replace_file
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import ExchangeOptions
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.edge.cluster_sharing import ClusterSharing
from fedwright.server_runtime.edge.pooled_update import Grouping, Plain, PooledReply, Reader, split
from fedwright.server_runtime.transport.device_channel import Heard
from fedwright.server_runtime.transport.upload_puller import Pulled
from fedwright.simulation.local_fleet import BOOT, LocalFleet


def in_turn(devices: Sequence[str], edges: int) -> dict[str, str]:
    """The edge of each device, in the order of their ids: edge-1, edge-2, ..., edge-1 again."""
    return {device: f"edge-{number % edges + 1}" for number, device in enumerate(sorted(devices))}


@dataclass(frozen=True)
class FileNotes:
    """What a simulated edge keeps, one file for each note."""

    folder: Path

    def note(self, name: str) -> bytes | None:
        """See Notes."""
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def save_note(self, name: str, value: bytes) -> None:
        """See Notes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / name, value)


@dataclass(frozen=True)
class SimulatedEdge:
    """How an edge puts updates together and what it shows others; both outlive the process, so that a run can go on."""

    grouping: Grouping
    sharing: ClusterSharing


def make_edge(name: str, section: SimulateSection, folder: Path, blobs: BlobStore) -> SimulatedEdge:
    """An edge of a simulation; what it keeps lies in a folder."""
    notes = FileNotes(folder)
    if section.clusters == 1 and section.exchange == "off":
        return SimulatedEdge(Plain(), ClusterSharing(name, notes, blobs))
    from fedwright.server_runtime.edge.clusters import Clustered, ExchangeNeeds

    options = None if section.exchange == "off" else ExchangeOptions(section.exchange)
    return SimulatedEdge(
        Clustered(ExchangeNeeds(section.clusters, None, options), notes), ClusterSharing(name, notes, blobs)
    )


class EdgedFleet:
    """A fleet whose updates come in pools, one mean for each; `edges` by name."""

    def __init__(
        self, fleet: LocalFleet, places: Mapping[str, str], *, blobs: BlobStore, edges: Mapping[str, SimulatedEdge]
    ) -> None:
        self._fleet = fleet
        self._places = places
        self._reader = Reader(blobs)
        self._edges = edges
        self._tasks: dict[str, tuple[str, Task]] = {}
        self._answers: dict[str, Update | None] = {}

    def challenge(self, device: str, tell: Sequence[str] = (), *, profile: bool = False) -> None:
        """See LocalFleet."""
        self._fleet.challenge(device, tell)

    def assign(self, device: str, boot: str, task: Task) -> None:
        """Have the task done and remember which pool it belongs to."""
        if task.pool is not None:
            self._tasks[task.task] = (device, task)
        self._fleet.assign(device, boot, task)

    def ask(self, device: str, ask: SumAsk) -> None:
        """See LocalFleet."""
        self._fleet.ask(device, ask)

    def withdraw(self, task: str) -> None:
        """Tasks that were answered are over."""

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """See LocalFleet."""
        self._fleet.acknowledge(device, task, problem=problem)

    def dismiss(self, device: str, dismissal: Dismiss) -> None:
        """See LocalFleet."""
        self._fleet.dismiss(device, dismissal)

    def pull(self, device: str, ref: BlobRef) -> None:
        """Updates lie in the server's own store before they are announced."""

    def edge_of(self, device: str) -> str | None:
        """The edge that a device sits behind."""
        return self._places.get(device)

    def recall(self, edge: str, task: str) -> None:
        """Tasks go one way only here."""

    def recall_all(self, device: str) -> None:
        """Nobody is taken out here."""

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """What the fleet says, but updates of a pool only when it is complete, as one."""
        events: list[Heard | Pulled] = []
        for event in self._fleet.poll(timeout_s):
            answer = event.message if isinstance(event, Heard) else None
            if not isinstance(answer, Update | Refusal) or answer.task not in self._tasks:
                events.append(event)
            elif isinstance(answer, Refusal):
                self._answers[answer.task] = None
                events.append(event)
            else:
                self._answers[answer.task] = answer
        ripe = {edge: names for edge in sorted(self._edges) if (names := self._ripe(edge))}
        for edge, names in ripe.items():
            self._show(edge, names)
        for edge, names in ripe.items():
            events += self._close(edge, names)
        return events

    def _ripe(self, edge: str) -> dict[str, list[str]]:
        """The tasks of an edge's complete pools; of all or none where they go up together."""
        pools: dict[str, list[str]] = {}
        for name, (_, task) in self._tasks.items():
            if task.pool is not None and task.pool.edge == edge:
                pools.setdefault(task.pool.key, []).append(name)
        # All tasks of a stage are handed out before the first answer is heard; a run that goes on has fewer of a pool.
        ripe = {key: names for key, names in pools.items() if all(name in self._answers for name in names)}
        return {} if self._edges[edge].grouping.together and len(ripe) < len(pools) else ripe

    def _show(self, edge: str, ripe: dict[str, list[str]]) -> None:
        """Let other edges see the clusters of one that is ready."""
        own, stage = self._edges[edge], self._stage(ripe)[0]
        if own.grouping.together and stage is not None and own.sharing.stage != stage:
            _, pooled = split({key: self._members(names) for key, names in ripe.items()}, own.grouping)
            own.sharing.show(stage, own.grouping.show(pooled, self._reader) if pooled else None)

    def _close(self, edge: str, ripe: dict[str, list[str]]) -> list[Heard]:
        """The pooled updates of an edge's complete pools, as soon as all edges that it waits for have shown theirs."""
        own, (stage, peers) = self._edges[edge], self._stage(ripe)
        elsewhere: dict[str, bytes] = {}
        if own.grouping.together and stage is not None:
            if any(name not in self._answers for name in self._tasks if self._edge(name) in peers):
                return []
            for peer in peers:
                shown = self._edges[peer].sharing.own()
                if shown is not None:
                    own.sharing.take(shown)
            elsewhere = own.sharing.views(stage, peers)
        alone, pooled = split({key: self._members(names) for key, names in ripe.items()}, own.grouping)
        heard = [Heard(member.device, BOOT, member.update) for member in alone]
        if pooled:
            heard += [Heard(edge, BOOT, update) for update in own.grouping.group(pooled, self._reader, elsewhere)]
        self._forget([name for names in ripe.values() for name in names], alone)
        return heard

    def _edge(self, name: str) -> str:
        pool = self._tasks[name][1].pool
        return "" if pool is None else pool.edge

    def _stage(self, ripe: dict[str, list[str]]) -> tuple[str | None, list[str]]:
        """The stage that tasks belong to, where edges show each other their clusters in it, and those edges."""
        pool = self._tasks[next(iter(ripe.values()))[0]][1].pool
        return (None, []) if pool is None else (pool.stage, pool.peers)

    def _members(self, names: list[str]) -> list[PooledReply]:
        found = []
        for name in names:
            update = self._answers[name]
            if update is not None:
                found.append(PooledReply(*self._tasks[name], update))
        return found

    def _forget(self, names: list[str], alone: list[PooledReply]) -> None:
        """Let go of a pool that is closed; its updates are no longer needed but for those that went up as they came."""
        kept = {member.update.tensors.sha256 for member in alone if member.update.tensors is not None}
        for name in names:
            del self._tasks[name]
            update = self._answers.pop(name)
            if update is not None and update.tensors is not None and update.tensors.sha256 not in kept:
                self._reader.blobs.remove(update.tensors.sha256)
