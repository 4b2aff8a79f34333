"""Puts the updates of one pool together: one mean with the weight of all, the same on an edge and in a simulation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedwright.protocol import artifact as artifacts
from fedwright.protocol import deltas
from fedwright.protocol.artifact import BY_CLASS, CLASS_COUNTS, CLASS_MEANS, Manifest
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.messages import Part, Task, Update
from fedwright.server_runtime.fleet.admission import check_stats, clip_norm, magnitude, read_update
from fedwright.server_runtime.methods.base import Tensors
from fedwright.server_runtime.rounds.pooled_tasks import total
from fedwright.server_runtime.rounds.size_limits import ChangeSize, SizeLimits, held_counts, limits_of


@dataclass(frozen=True)
class PooledReply:
    """One device's answered task."""

    device: str
    task: Task
    update: Update


class Reader:
    """Reads updates out of a blob store; manifests are read once per artifact."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self._manifests: dict[str, Manifest] = {}
        # Of the model that was asked about last: members of a pool have the same.
        self._reach: tuple[str, dict[str, float]] = ("", {})

    def manifest(self, task: Task) -> Manifest:
        """What the task's artifact reads and writes."""
        name = task.artifact.sha256
        if name not in self._manifests:
            self._manifests[name] = artifacts.unpack(self.blobs.read(name)).manifest
        return self._manifests[name]

    def read(self, task: Task, update: Update) -> Tensors:
        """An update's tensors, checked as the server checks them and held to the pool's norm limit."""
        check_stats(update.stats, task.recipe)
        if update.tensors is None:
            return {}
        sent = deltas.load(self.blobs.path(task.weights.sha256))[1] if task.returns.masked else None
        path = self.blobs.path(update.tensors.sha256)
        values = read_update(path, self.manifest(task), task.returns, sent=sent, reach=self._sent(task))
        if task.pool is None:
            return values
        return clip_norm(held_counts(values, task.pool.most_samples), task.pool.clip_norm)

    def _sent(self, task: Task) -> dict[str, float]:
        """The largest magnitude in each tensor of the model that the task brought."""
        if self._reach[0] != task.weights.sha256:
            sent = deltas.load(self.blobs.path(task.weights.sha256))[0]
            self._reach = (task.weights.sha256, {name: magnitude(value) for name, value in sent.items()})
        return self._reach[1]


class Grouping(Protocol):
    """How the answers of complete pools become updates."""

    together: bool
    """Whether all pools of a round go up at once, when other edges have shown theirs; else each when it is complete."""

    labels: bool
    """Whether it says of each update which cluster's it is, of that of a single device too."""

    def show(self, pools: dict[str, list[PooledReply]], reader: Reader) -> bytes | None:
        """What other edges need of these pools to group theirs; None when nothing."""
        ...

    def group(
        self, pools: dict[str, list[PooledReply]], reader: Reader, elsewhere: Mapping[str, bytes]
    ) -> list[Update]:
        """One or more pooled updates for each pool; elsewhere: what other edges have shown."""
        ...


class Plain:
    """One mean for each pool."""

    together = False
    labels = False

    def show(self, pools: dict[str, list[PooledReply]], reader: Reader) -> bytes | None:
        """See Grouping."""
        return None

    def group(
        self, pools: dict[str, list[PooledReply]], reader: Reader, elsewhere: Mapping[str, bytes]
    ) -> list[Update]:
        """See Grouping."""
        return [put_together(members, reader) for members in pools.values()]


def split(
    members: Mapping[str, list[PooledReply]], grouping: Grouping
) -> tuple[list[PooledReply], dict[str, list[PooledReply]]]:
    """Members that are the only ones of their pool, whose updates go up as they came, and the pools of the others."""
    pools = {key: found for key, found in members.items() if found}
    if grouping.together or grouping.labels:
        return [], pools
    alone = [found[0] for found in pools.values() if len(found) == 1]
    return alone, {key: found for key, found in pools.items() if len(found) > 1}


def put_together(members: Sequence[PooledReply], reader: Reader) -> Update:
    """One update for all members, in the order of their devices; its tensors lie in the store."""
    ordered = sorted(members, key=lambda member: member.device)
    parts = [Part(member.task.task, member.update.stats) for member in ordered]
    values = mean(ordered, reader)
    return pack(ordered[0].task, parts, values, reader.blobs)


def pack(task: Task, parts: list[Part], values: Tensors, blobs: BlobStore, *, cluster: str = "") -> Update:
    """A pooled update of these tensors; class means that were for the edge alone stay here."""
    if task.pool is not None and task.pool.class_means:
        values = {name: value for name, value in values.items() if name not in BY_CLASS}
    blob = deltas.encode(values)
    blobs.put_bytes(blob)
    ref = make_ref(blob, chunk_bytes=task.weights.chunk_bytes, inline=False)
    return Update(task.task, task.round, total(parts), ref, parts, cluster)


def mean(members: Sequence[PooledReply], reader: Reader) -> Tensors:
    """Σ w_i Δ_i / Σ w_i, one device at a time; w_i its samples, or 1 where every device counts the same.

    No Δ_i is larger than the host's multiple of the median: a hostile device among them would else be all of the mean.
    """
    limits = _limits(members, reader)

    def values(member: PooledReply) -> Tensors:
        own = reader.read(member.task, member.update)
        return own if limits is None else limits.held(own)

    return weighted_mean((values(member), weight_of(member)) for member in members)


def _limits(members: Sequence[PooledReply], reader: Reader) -> SizeLimits | None:
    pool = members[0].task.pool
    factor = None if pool is None else pool.norm_factor
    if factor is None or len(members) < 2:
        return None
    sizes = [ChangeSize.of(reader.read(member.task, member.update)) for member in members]
    # Of two the smaller one counts: neither can outweigh the other.
    return limits_of(sizes, factor, least=2)


def weight_of(member: PooledReply) -> float:
    """How much a device counts in its pool: as it says, and at most as the host lets it."""
    pool = member.task.pool
    if pool is not None and pool.by == "devices":
        return 1.0
    most = None if pool is None else pool.most_samples
    samples = member.update.stats.samples
    return float(samples if most is None else min(samples, most))


def weighted_mean(parts: Iterable[tuple[Tensors, float]]) -> Tensors:
    """The mean in double precision; class means weigh by their own counts, integers keep the largest."""
    sums: Tensors = {}
    kinds: dict[str, np.dtype] = {}
    weight = 0.0
    for tensors, own in parts:
        weight += own
        for name, value in tensors.items():
            kinds[name] = value.dtype
            if name == CLASS_MEANS:
                addend = value.astype(np.float64) * tensors[CLASS_COUNTS][:, None]
            elif name == CLASS_COUNTS:
                addend = value.astype(np.float64)
            elif np.issubdtype(value.dtype, np.floating):
                addend = value.astype(np.float64) * own
            else:
                sums[name] = np.maximum(sums[name], value) if name in sums else value
                continue
            sums[name] = sums[name] + addend if name in sums else addend
    for name, value in sums.items():
        if name == CLASS_MEANS:
            sums[name] = value / np.maximum(sums[CLASS_COUNTS], 1)[:, None]
        elif name != CLASS_COUNTS and np.issubdtype(kinds[name], np.floating):
            sums[name] = value / (weight or 1.0)
    return {name: np.asarray(value).astype(kinds[name]) for name, value in sums.items()}
