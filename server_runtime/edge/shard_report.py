"""What an edge that stands for its devices says of them: one report, as of one device that holds all their data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low

from msgspec import structs

from fedwright import __version__
from fedwright.protocol.data_summary import DataSummary
from fedwright.protocol.messages import Board, Report

# Nobody's word makes the whole shard's model larger than so many times the middle one.
MOST_CLASSES_RATIO = 4


def report_of(board: Board, devices: Mapping[str, Report]) -> Report:
    """The devices as one: what all can do, and the sum of what they hold."""
    training = [report for _, report in sorted(devices.items()) if report.trains and report.data.samples]
    if not training:
        nothing = DataSummary(samples=0, holdout=0, input_shape=[], classes=1)
        return Report(__version__, board, board.ram_bytes, nothing, trains=False, stands_for=max(1, len(devices)))
    shape = Counter(tuple(report.data.input_shape) for report in training).most_common(1)[0][0]
    alike = [report for report in training if tuple(report.data.input_shape) == shape]
    return Report(
        agent=__version__,
        board=board,
        free_bytes=min(report.free_bytes for report in alike),
        data=_together([report.data for report in alike]),
        round_s=_least(alike, lambda report: report.round_s),
        round_bytes=_whole(_least(alike, lambda report: report.round_bytes)),
        would_tell=sorted(set.intersection(*(set(report.would_tell) for report in alike))),
        stands_for=len(alike),
    )


def _together(data: Sequence[DataSummary]) -> DataSummary:
    names = _names(data)
    classes = len(names) if names else _believed_classes(data)
    first = data[0]
    descriptors = [one.descriptor for one in data if one.descriptor is not None]
    spreads = [one.pixel_std for one in data if one.pixel_std is not None]
    return DataSummary(
        samples=sum(one.samples for one in data),
        holdout=sum(one.holdout for one in data),
        input_shape=first.input_shape,
        classes=classes,
        class_counts=_counts(data, names, classes),
        score_counts=_summed([one.score_counts for one in data]),
        pixel_std=sum(spreads) / len(spreads) if len(spreads) == len(data) else None,
        descriptor=_mean(descriptors) if len(descriptors) == len(data) else None,
        class_names=names,
        input_dtype=Counter(one.input_dtype for one in data).most_common(1)[0][0],
        counted=all(one.counted for one in data),
        goal=Counter(one.goal for one in data).most_common(1)[0][0],
    )


def _names(data: Sequence[DataSummary]) -> list[str] | None:
    """All classes by name, in one order; None where some device has numbers."""
    if any(one.class_names is None for one in data):
        return None
    return sorted({name for one in data for name in one.class_names or []})


def _believed_classes(data: Sequence[DataSummary]) -> int:
    most = MOST_CLASSES_RATIO * median_low(sorted(one.classes for one in data))
    return max(one.classes for one in data if one.classes <= most)


def _counts(data: Sequence[DataSummary], names: list[str] | None, classes: int) -> list[int] | None:
    if any(one.class_counts is None for one in data):
        return None
    total = [0] * classes
    counted = all(one.counted for one in data)
    for one in data:
        places = range(len(one.class_counts or [])) if names is None else map(names.index, one.class_names or [])
        for place, count in zip(places, one.class_counts or [], strict=False):
            if place < classes:
                total[place] += count if counted else 0
                total[place] = max(total[place], int(count > 0))
    return total


def _summed(counts: Sequence[list[int] | None]) -> list[int] | None:
    known = [one for one in counts if one is not None]
    if len(known) < len(counts) or len({len(one) for one in known}) > 1:
        return None
    return [sum(column) for column in zip(*known, strict=True)]


def _mean(rows: Sequence[list[float]]) -> list[float] | None:
    if len({len(row) for row in rows}) > 1:
        return None
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _least(reports: Sequence[Report], of: Callable[[Report], float | None]) -> float | None:
    found = [value for report in reports if (value := of(report)) is not None]
    return min(found, default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def says_more(before: Report | None, now: Report) -> bool:
    """Whether a report says what the host does not know; what is free changes all the time."""
    return before is None or structs.replace(before, free_bytes=now.free_bytes) != now
