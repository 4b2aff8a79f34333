"""What an edge that stands for its devices says of them: one report, as of one device that holds all their data.

No device's word decides what the others get: of what they claim, what the middle one does not bear out is not counted.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low

from msgspec import structs

from fedwright import __version__
from fedwright.protocol.data_summary import DataSummary
from fedwright.protocol.field_types import MOST_COUNT
from fedwright.protocol.messages import Board, Report
from fedwright.server_runtime.fleet.class_names import largest_believed
from fedwright.server_runtime.rounds.believed_samples import capped_reports

# A device has at most so many times the samples of the middle one.
MOST_SAMPLES_RATIO = 10.0
# Whoever has less than the middle one by more than this refuses a task by itself; it does not make it small for all.
LEAST_RATIO = 16
# Descriptors so many times as long as the middle one are none.
MOST_LENGTH_RATIO = 4


def report_of(board: Board, devices: Mapping[str, Report]) -> Report:
    """The devices as one: what all can do, and the sum of what they hold."""
    believed = believed_reports(devices)
    training = [report for _, report in sorted(believed.items()) if report.trains and report.data.samples]
    if not training:
        nothing = DataSummary(samples=0, holdout=0, input_shape=[], classes=1)
        return Report(__version__, board, board.ram_bytes, nothing, trains=False, stands_for=max(1, len(devices)))
    alike = _alike(training, lambda report: tuple(report.data.input_shape))
    alike = _alike(alike, lambda report: report.data.class_names is None)
    return Report(
        agent=__version__,
        board=board,
        free_bytes=int(_least([report.free_bytes for report in alike]) or 0),
        data=_together([report.data for report in alike]),
        round_s=_least([report.round_s for report in alike]),
        round_bytes=_whole(_least([report.round_bytes for report in alike])),
        would_tell=sorted(set.intersection(*(set(report.would_tell) for report in alike))),
        stands_for=len(alike),
    )


def believed_reports(devices: Mapping[str, Report]) -> dict[str, Report]:
    """Reports in which nobody has many more samples than the middle one, and counts of no more than it has."""
    return {device: _counting(report) for device, report in capped_reports(devices, MOST_SAMPLES_RATIO).items()}


def _counting(report: Report) -> Report:
    data = report.data
    counts = data.class_counts and [min(count, data.samples) for count in data.class_counts]
    holdout = min(data.holdout, int(MOST_SAMPLES_RATIO) * data.samples)
    if holdout == data.holdout and counts == data.class_counts:
        return report
    return structs.replace(report, data=structs.replace(data, holdout=holdout, class_counts=counts))


def _alike(reports: Sequence[Report], of: Callable[[Report], object]) -> list[Report]:
    """Those that say of something what most say."""
    most = Counter(map(of, reports)).most_common(1)[0][0]
    return [report for report in reports if of(report) == most]


def _together(data: Sequence[DataSummary]) -> DataSummary:
    names = _names(data)
    classes = len(names) if names else largest_believed([one.classes for one in data])
    descriptors = [one.descriptor for one in data if one.descriptor is not None]
    spreads = [one.pixel_std for one in data if one.pixel_std is not None]
    return DataSummary(
        samples=min(MOST_COUNT, sum(one.samples for one in data)),
        holdout=min(MOST_COUNT, sum(one.holdout for one in data)),
        input_shape=data[0].input_shape,
        classes=classes,
        class_counts=_counts(data, names, classes),
        score_counts=_summed([one.score_counts for one in data]),
        pixel_std=_mean([[spread] for spread in spreads])[0] if len(spreads) == len(data) else None,
        descriptor=_mean(descriptors) if len(descriptors) == len(data) else None,
        class_names=names,
        input_dtype=Counter(one.input_dtype for one in data).most_common(1)[0][0],
        counted=all(one.counted for one in data),
        goal=Counter(one.goal for one in data).most_common(1)[0][0],
    )


def _names(data: Sequence[DataSummary]) -> list[str] | None:
    """All classes by name, in one order; None where devices have numbers."""
    named = [one.class_names for one in data if one.class_names is not None]
    if not named:
        return None
    most = largest_believed([len(names) for names in named])
    return sorted({name for names in named if len(names) <= most for name in names})


def _counts(data: Sequence[DataSummary], names: list[str] | None, classes: int) -> list[int] | None:
    if any(one.class_counts is None for one in data):
        return None
    total = [0] * classes
    place_of = None if names is None else {name: place for place, name in enumerate(names)}
    counted = all(one.counted for one in data)
    for one in data:
        counts = one.class_counts or []
        own = (
            range(len(counts)) if place_of is None else [place_of.get(name, classes) for name in one.class_names or []]
        )
        for place, count in zip(own, counts, strict=False):
            if place < classes:
                total[place] += count if counted else 0
                total[place] = max(total[place], int(count > 0))
    return [min(MOST_COUNT, count) for count in total]


def _summed(counts: Sequence[list[int] | None]) -> list[int] | None:
    known = [one for one in counts if one is not None]
    if len(known) < len(counts) or len({len(one) for one in known}) > 1:
        return None
    # Nobody's words are many times those of the middle one.
    most = int(MOST_SAMPLES_RATIO * median_low(sorted(map(sum, known))))
    return [min(MOST_COUNT, sum(min(count, most) for count in column)) for column in zip(*known, strict=True)]


def _mean(rows: Sequence[list[float]]) -> list[float]:
    """The mean of the rows that have the usual length and are not many times as large as the middle one."""
    size = Counter(map(len, rows)).most_common(1)[0][0]
    lengths = [math.hypot(*row) if len(row) == size else math.inf for row in rows]
    known = sorted(length for length in lengths if math.isfinite(length))
    most = MOST_LENGTH_RATIO * median_low(known) if known else 0.0
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= most]
    return [sum(column) / len(kept) for column in zip(*kept, strict=True)] if kept else [0.0] * size


def _least(claims: Sequence[float | None]) -> float | None:
    """The least that the middle one bears out; None where nobody claims anything."""
    found = sorted(value for value in claims if value is not None)
    return next((value for value in found if value * LEAST_RATIO >= median_low(found)), None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def says_more(before: Report | None, now: Report) -> bool:
    """Whether a report says what the host does not know; what is free changes all the time."""
    return before is None or structs.replace(before, free_bytes=now.free_bytes) != now
