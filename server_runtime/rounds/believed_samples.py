"""How many samples a device counts for: as many as it reported when it joined, within a few times the median."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from fedwright.protocol.messages import Report, Stats, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Planned


class IdleDevices:
    """Devices that have nothing to train on: they are only asked to measure, and each is named once."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def read(self, device: str, report: Report, observe: events.Observer) -> Report:
        """The report as the rounds should take it."""
        if not report.trains or report.data.samples or report.edge:
            return report
        if device not in self._named:
            self._named.add(device)
            text = "it reports no samples, so it does not train; give it data"
            observe(events.Warned(text, device, "left out"))
        return structs.replace(report, trains=False)


def capped_reports(reports: Mapping[str, Report], cap: float | None) -> dict[str, Report]:
    """Reports in which nobody has more than `cap` times the samples of the median device that trains."""
    most = most_samples(reports, cap)
    return {
        device: report
        if most is None or report.data.samples <= most
        else structs.replace(report, data=structs.replace(report.data, samples=most))
        for device, report in reports.items()
    }


def most_samples(reports: Mapping[str, Report], cap: float | None) -> int | None:
    """`cap` times the median of what devices that train report; of an even number the lower one counts."""
    counts = sorted(report.data.samples for report in reports.values() if report.trains)
    if cap is None or not counts:
        return None
    return max(1, int(cap * counts[(len(counts) - 1) // 2]))


def with_limits(assignments: Mapping[str, Assignment], reports: Mapping[str, Report]) -> dict[str, Assignment]:
    """Assignments that say how much each device may count for."""
    return {
        device: replace(assignment, most_samples=max(1, reports[device].data.samples))
        for device, assignment in assignments.items()
    }


def passed_on(assignments: Mapping[str, Assignment], plan: Sequence[Planned]) -> dict[str, Assignment]:
    """Assignments of a later stage: as the round's first plan says, and at most its largest for who was not in it."""
    known = {p.device: p.assignment.most_samples for p in plan if p.assignment.most_samples is not None}
    most = max(known.values(), default=None)
    return {
        device: replace(assignment, most_samples=known.get(device, most)) for device, assignment in assignments.items()
    }


def believed(update: Update, planned: Planned) -> Update:
    """The update with as many samples as its device may count for."""
    return structs.replace(update, stats=_held(update.stats, planned))


def believed_pool(update: Update, plan: Sequence[Planned]) -> Update:
    """The same for each part of a pooled update."""
    pairs = zip(update.parts, plan, strict=True)
    return structs.replace(update, parts=[structs.replace(part, stats=_held(part.stats, one)) for part, one in pairs])


def _held(stats: Stats, planned: Planned) -> Stats:
    terms, most = planned.task.sum, planned.assignment.most_samples
    if terms is not None and terms.largest_weight > 1:
        # As its device has weighed it.
        most = terms.largest_weight
    return stats if most is None or stats.samples <= most else structs.replace(stats, samples=most)
