"""Three views of the same runs: at equal parameters, at equal bytes and at equal seconds of the devices.

The runs themselves give every device the same share of parameters for the same number of rounds. The other views stop
each run earlier: at its last measurement by which its devices had moved, or worked, as much as those of a base run in
all of its rounds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedwright.benchmarks.harness.suite import Finished, mean, summary

Runs = Mapping[str, Sequence[Finished]]


def budget_views(runs: Runs, base: str, figure: str = "mean") -> list[dict[str, Any]]:
    """A row per method: its accuracy in percent after all rounds, at the base's bytes and at the base's seconds."""
    rows = []
    for name, own in runs.items():
        pairs = list(zip(own, runs[base], strict=True))
        by_bytes = [_within(job, bytes_by_round(job), bytes_by_round(other)[-1], figure) for job, other in pairs]
        by_s = [_within(job, seconds_by_round(job), seconds_by_round(other)[-1], figure) for job, other in pairs]
        row = {
            "method": name,
            "equal parameters": 100 * mean(job.curve("test before", figure)[-1] for job in own),
            "equal bytes": _mean_or_none(by_bytes),
            "equal device s": _mean_or_none(by_s),
            "MB per device": mean(bytes_by_round(job)[-1] for job in own) / 1e6,
            "device s": mean(seconds_by_round(job)[-1] for job in own),
        }
        rows.append(row)
    return rows


def bytes_by_round(job: Finished) -> list[float]:
    """Bytes down and up that a device had moved by the end of each round, mean over devices.

    What is fetched once (graphs, a frozen base, public examples) counts from the first round on.
    """
    devices = max(1, len(job.devices))
    rounds = [metrics.get("bytes_down", 0.0) + metrics.get("bytes_up", 0.0) for metrics in job.metrics]
    once = max(0.0, sum(record.bytes_up + record.bytes_down for record in job.devices.values()) - sum(rounds))
    moved, found = once, []
    for own in rounds:
        moved += own
        found.append(moved / devices)
    return found


def seconds_by_round(job: Finished) -> list[float]:
    """Processor seconds that a device had worked by the end of each round, mean over devices and rounds."""
    total = sum(record.cpu_s for record in job.devices.values()) / max(1, len(job.devices))
    count = max(1, len(job.metrics))
    return [total * (number + 1) / count for number in range(count)]


def _within(job: Finished, spent: Sequence[float], limit: float, figure: str) -> float | None:
    """In percent at the last measurement within a limit; None where even the first is beyond it."""
    # Sums of floats in another order must not cost a round.
    inside = [e for e in job.evaluations if e.part == "test before" and spent[e.round - 1] <= limit * (1 + 1e-9)]
    return 100 * summary(inside[-1])[figure] if inside else None


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None
