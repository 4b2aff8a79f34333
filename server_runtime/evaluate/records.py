"""What each device did over a run, put together from the durable replies."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.messages import Stats
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.rounds.store.base import Position, RoundStore
from fedwright.server_runtime.spec import Structure
from fedwright.server_runtime.zoo import width_of


@dataclass
class DeviceRecord:
    """One device over all rounds; accuracies are those of the model it was sent, on its own held-out data.

    width: mean share of the channels in each group of the model it was last sent. need_bytes: the most memory that
    the server expected one of its tasks to need. macs: of one prediction by the model it was last sent. energy_j: in
    all, where the board tells.
    """

    device: str
    samples: int = 0
    width: float = 1.0
    rounds: int = 0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    task_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    need_bytes: int = 0
    macs: int = 0
    energy_j: float | None = None

    @property
    def round_s(self) -> float:
        """Mean wall-clock seconds the device worked per round."""
        return sum(self.task_s) / len(self.task_s) if self.task_s else 0.0


def device_records(
    store: RoundStore, *, rounds: int, manifest: Callable[[Structure], Manifest] | None = None
) -> dict[str, DeviceRecord]:
    """Records of all devices that answered at least once; the stage after the last round is the closing evaluation.

    manifest: what a structure needs and costs.
    """
    records: dict[str, DeviceRecord] = {}
    last: dict[str, int] = {}
    for position in [*(closed.position for closed in store.closed()), Position(rounds + 1, 0)]:
        replies = store.replies(position)
        for planned in store.plan(position) or []:
            reply = replies.get(planned.task.task)
            if reply is not None and reply.update is not None:
                record = records.setdefault(planned.device, DeviceRecord(planned.device))
                structure = planned.assignment.structure
                record.width = width_of(structure.spec)
                if manifest is not None:
                    found = manifest(structure)
                    record.need_bytes = max(record.need_bytes, need_bytes(found, planned.task.recipe.batch))
                    record.macs = found.macs
                again = last.get(planned.device) == position.round
                _add(record, reply.update.stats, evaluation=position.round > rounds, again=again)
                last[planned.device] = position.round
    return records


def _add(record: DeviceRecord, stats: Stats, *, evaluation: bool, again: bool) -> None:
    """again: a further task of the same round, as in a relay."""
    if stats.holdout and stats.correct_before is not None:
        accuracy = stats.correct_before / stats.holdout
        if record.accuracy_before is None:
            record.accuracy_before = accuracy
        record.accuracy_after = accuracy
    if again:
        record.task_s[-1] += stats.task_s
    elif not evaluation:
        record.samples = stats.samples
        record.rounds += 1
        record.task_s.append(stats.task_s)
    record.cpu_s += stats.cpu_s
    if stats.energy_j is not None:
        record.energy_j = (record.energy_j or 0.0) + stats.energy_j
    record.peak_rss_bytes = max(record.peak_rss_bytes, stats.peak_rss_bytes)
    # Counted by the agent from its own start, which a restart sets back to zero.
    record.bytes_up = max(record.bytes_up, stats.bytes_up)
    record.bytes_down = max(record.bytes_down, stats.bytes_down)
