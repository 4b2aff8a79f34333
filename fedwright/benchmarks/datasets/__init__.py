"""Public data sets for the benchmarks and the demo, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from fedwright.benchmarks.datasets import digits
from fedwright.benchmarks.datasets.base import DataSet, DataSetInfo, Kind
from fedwright.protocol.errors import ConfigError

__all__ = ["DATASETS", "DataSet", "DataSetInfo", "load"]


@dataclass(frozen=True)
class Entry:
    """One data set that can be loaded."""

    name: str
    summary: str
    kind: Kind
    load: Callable[[], DataSet]


DATASETS: dict[str, Entry] = {
    entry.name: entry
    for entry in (Entry("digits", "1,797 grey 8×8 digits, embedded in scikit-learn", "image", digits.load),)
}


def load(name: str) -> DataSet:
    """The data set of that name, or an error that lists the names there are."""
    if name not in DATASETS:
        raise ConfigError(f"unknown data set {name!r}; choose one of {', '.join(sorted(DATASETS))}")
    return DATASETS[name].load()
