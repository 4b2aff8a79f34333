"""Puts together what each device did over a run, from the durable replies and from what stayed of forgotten ones."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.messages import Stats
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.rounds.store.base import EndedTask, Planned, Remnant, RoundStore
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.spec import ModelSpec, Structure

ManifestOf = Callable[[Structure], Manifest]
"""What the artifact of a structure reads and writes, needs and costs."""


def device_records(store: RoundStore, *, rounds: int, manifest: ManifestOf | None = None) -> dict[str, DeviceRecord]:
    """Records of all devices that answered at least once, with the measurement after the last round."""
    counted = [one for one in store.ended() if not one.position.is_evaluation or one.position.round == rounds]
    found = add_up(store.remnants(), counted, manifest)
    return {device: kept.record for device, kept in sorted(found.items()) if kept.record.answers}


def add_up(
    remnants: Mapping[str, Remnant], ended: Iterable[EndedTask], manifest: ManifestOf | None
) -> dict[str, Remnant]:
    """What stays of each device's tasks when these are added to those that were forgotten before."""
    found = {device: replace(kept, record=replace(kept.record)) for device, kept in remnants.items()}
    for position, planned, reply in ended:
        kept = found.get(planned.device) or Remnant(DeviceRecord(planned.device))
        number = kept.last_round
        if reply is not None and reply.update is not None:
            _count_model(kept.record, planned, manifest)
            _count_stats(kept.record, reply.update.stats)
            if not position.is_evaluation:
                _count_work(kept.record, reply.update.stats, again=number == position.round)
                number = position.round
        last = kept.last if reply is None else replace(reply, update=None)
        found[planned.device] = Remnant(kept.record, number, last)
    return found


def _count_model(record: DeviceRecord, planned: Planned, manifest: ManifestOf | None) -> None:
    structure = planned.assignment.structure
    record.answers += 1
    record.width = _width_of(structure.spec)
    if manifest is not None:
        found = manifest(structure)
        record.need_bytes = max(record.need_bytes, need_bytes(found, planned.task.recipe.at_once))
        record.macs = found.macs


def _width_of(spec: ModelSpec) -> float:
    if not spec.sizes:
        return 1.0
    # To look at a run of whole models takes no torch.
    from fedwright.server_runtime.zoo import width_of

    return width_of(spec)


def _count_work(record: DeviceRecord, stats: Stats, *, again: bool) -> None:
    """again: a further task of the same round, as in a relay."""
    record.task_s += stats.task_s
    if not again:
        record.samples = stats.samples
        record.rounds += 1


def _count_stats(record: DeviceRecord, stats: Stats) -> None:
    if stats.holdout and stats.correct_before is not None:
        accuracy = stats.correct_before / stats.holdout
        if record.accuracy_before is None:
            record.accuracy_before = accuracy
        record.accuracy_after = accuracy
    record.cpu_s += stats.cpu_s
    if stats.energy_j is not None:
        record.energy_j = (record.energy_j or 0.0) + stats.energy_j
    record.peak_rss_bytes = max(record.peak_rss_bytes, stats.peak_rss_bytes)
    # Counted by the agent from its own start, which a restart sets back to zero.
    record.bytes_up = max(record.bytes_up, stats.bytes_up)
    record.bytes_down = max(record.bytes_down, stats.bytes_down)
