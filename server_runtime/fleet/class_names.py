"""One list of classes for a fleet whose devices name or number their own, and reports in the order of that list."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from fedwright.protocol.class_names import checked_names, places_in, shown
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.protocol.messages import DataSummary, Report
from fedwright.protocol.support.settings import check_range

REMEDY = 'list them in the config, such as classes = ["cat", "dog"] under [model]'


# A device may know of so many times as many classes as the median one, or so many more; beyond that it is not believed.
MOST_TIMES = 2
MOST_MORE = 16


def largest_believed(counts: Sequence[int]) -> int:
    """The largest of some numbers of classes that the median bears out; 0 for none. Of an even number the lower counts.

    Devices with few labels know of fewer classes than there are, so the median itself would be too small.
    """
    if not counts:
        return 0
    median = sorted(counts)[(len(counts) - 1) // 2]
    return max(count for count in counts if count <= max(MOST_TIMES * median, median + MOST_MORE))


@dataclass(frozen=True)
class RunData:
    """How a run reads what devices report of their data.

    class_names: the run's classes in order, empty when they are numbers. listed: the config lists them, so that plain
    numbers are places in the list. input_dtype: what the model takes, empty when that is not known. classes: of the
    model; a device may know of fewer. goal: what the model is for, empty when that is not known.
    """

    class_names: tuple[str, ...] = ()
    listed: bool = False
    input_dtype: str = ""
    classes: int = 0
    goal: str = ""

    def read(self, report: Report) -> Report:
        """The report with all that it says of classes in the run's order; as it is when `problem` finds one."""
        data = report.data
        if self.input_dtype == "float32" and is_whole(data.input_dtype):
            # Whole numbers that are measured: neither their labels nor they themselves are words.
            numbers = data.descriptor if data.number_descriptor is None else data.number_descriptor
            data = structs.replace(data, score_counts=None, descriptor=numbers, number_descriptor=None)
        if data.class_names and data.class_names != list(self.class_names) and self.problem(report) is None:
            data = _in_order(data, self.class_names)
        if data.classes < self.classes and self.problem(report) is None:
            data = _filled_up(data, self.classes)
        return report if data is report.data else structs.replace(report, data=data)

    def problem(self, report: Report) -> str | None:
        """Why a device's classes or samples are not what the run is about; None when they are."""
        data = report.data
        if self.goal and data.goal != self.goal and data.samples:
            return (
                f"its data is for the task {data.goal} but the run's is {self.goal}; put ?task={self.goal} behind the "
                "device's data, or set task under [model]"
            )
        if is_whole(self.input_dtype) and data.input_dtype and not is_whole(data.input_dtype):
            return (
                f"its data has fractions ({data.input_dtype}) but the model takes whole numbers such as word numbers "
                f"({self.input_dtype}); save them as integers"
            )
        if data.class_names is None:
            if self.class_names and not self.listed:
                return f"its classes are numbers but the run's have names ({shown(self.class_names)}); {REMEDY}"
            return None
        if not self.class_names:
            return "its classes have names but those of the run are numbers; number them from 0, or " + REMEDY
        return _names_problem(data, self.class_names)


def is_whole(dtype: str) -> bool:
    """Whether a type, by its name, holds whole numbers."""
    return dtype.startswith(("int", "uint"))


def check_classes(classes: "int | tuple[str, ...] | None") -> None:
    """Raise ConfigError unless a config's classes are a number from 2 on, or as many names."""
    if classes is None:
        return
    try:
        count = classes if isinstance(classes, int) else len(checked_names(classes, where="classes"))
    except DataError as err:
        raise ConfigError(str(err)) from err
    check_range("classes" if isinstance(classes, int) else "number of classes", count, low=2, high=1_000_000)


def fleet_names(classes: "int | tuple[str, ...] | None", reports: Mapping[str, Report]) -> tuple[str, ...]:
    """All classes of a fleet in one order: as the config lists them, else the names that devices report, sorted.

    Empty when most devices number their classes; ConfigError when they are at odds on that. What a device says that
    names wrongly, or more classes than the median bears out, does not count; with a number of classes in the config
    those names count that most devices report.
    """
    if isinstance(classes, tuple):
        return checked_names(classes, where="model.classes")
    named = {device: r.data.class_names for device, r in sorted(reports.items()) if r.data.class_names is not None}
    plain = sorted(reports.keys() - named.keys())
    if len(named) < len(plain) or not named:
        return ()
    if len(named) == len(plain):
        raise ConfigError(
            f"the classes of device {plain[0]} are numbers but those of device {next(iter(named))} have names; {REMEDY}"
        )
    untold = [device for device, names in named.items() if not names]
    if 2 * len(untold) >= len(named):
        raise ConfigError(f"device {untold[0]} keeps the names of its classes to itself; {REMEDY}")
    told = {device: names for device, names in named.items() if names and _problem_of(device, names) is None}
    if not told:
        raise ConfigError(next(filter(None, (_problem_of(device, names) for device, names in named.items()))))
    most = largest_believed([len(names) for names in told.values()])
    support = Counter(name for names in told.values() if len(names) <= most for name in names)
    names = tuple(sorted(support))
    if isinstance(classes, int) and len(names) > classes:
        names = _best_supported(support, classes)
    try:
        return checked_names(names, where="the fleet")
    except DataError as err:
        raise ConfigError(str(err)) from err


def _problem_of(device: str, names: Sequence[str]) -> str | None:
    try:
        checked_names(names, where=f"device {device}")
    except DataError as err:
        return str(err)
    return None


def _best_supported(support: Mapping[str, int], count: int) -> tuple[str, ...]:
    """The names that most devices report; ConfigError when that does not decide it."""
    ranked = sorted(support, key=lambda name: -support[name])
    if support[ranked[count - 1]] == support[ranked[count]]:
        names = tuple(sorted(support))
        raise ConfigError(
            f"model.classes is {count} but the devices have {len(names)} classes ({shown(names)}); {REMEDY}"
        )
    return tuple(sorted(ranked[:count]))


def _names_problem(data: DataSummary, run_names: Sequence[str]) -> str | None:
    names = data.class_names or []
    try:
        places_in(run_names, checked_names(names, where="its data"))
    except DataError as err:
        return f"{err}; leave that class out, or start a run that lists it under [model] classes"
    if names and data.class_counts is not None and len(data.class_counts) != len(names):
        return f"it names {len(names)} classes but counts another number of them; update its agent"
    return None


def _in_order(data: DataSummary, names: Sequence[str]) -> DataSummary:
    places = places_in(names, data.class_names or [])
    counts = None if data.class_counts is None else [0] * len(names)
    if counts is not None:
        for place, count in zip(places, data.class_counts or (), strict=True):
            counts[place] = count
    return structs.replace(data, classes=len(names), class_counts=counts, class_names=list(names))


def _filled_up(data: DataSummary, classes: int) -> DataSummary:
    """Counts of all classes of the model; a device has nothing of those that it does not know of."""
    counts = data.class_counts
    filled = None if counts is None else counts + [0] * (classes - len(counts))
    return structs.replace(data, classes=classes, class_counts=filled)
