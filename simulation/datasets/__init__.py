"""Public data sets by name, and those of other packages."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support import plugins
from fedwright.protocol.support.settings import suggest
from fedwright.simulation.datasets import digits, images, motion
from fedwright.simulation.datasets.base import DataSet, DataSetInfo, Kind, Limit
from fedwright.simulation.datasets.cora import CORA, load_cora
from fedwright.simulation.datasets.files import Progress, Source, find
from fedwright.simulation.datasets.outside import load_outside
from fedwright.simulation.datasets.titles import TITLES, load_titles

__all__ = ["DATASETS", "DataSet", "DataSetInfo", "Limit", "available", "load", "load_titles", "offered"]


@dataclass(frozen=True)
class DataSetEntry:
    """One data set that can be loaded; without sources it is embedded."""

    name: str
    summary: str
    kind: Kind
    load: Callable[[Limit, Progress | None], DataSet]
    sources: tuple[Source, ...] = ()
    place: Callable[[], Path | None] | None = None


DATASETS: dict[str, DataSetEntry] = {
    entry.name: entry
    for entry in (
        DataSetEntry(
            "digits", "1,797 grey 8×8 digits, embedded in scikit-learn", "image", lambda limit, _: digits.load(limit)
        ),
        DataSetEntry("mnist", "70,000 grey 28×28 digits", "image", images.load_mnist, images.MNIST),
        DataSetEntry("fashion-mnist", "70,000 grey 28×28 clothes", "image", images.load_fashion, images.FASHION),
        DataSetEntry(
            "cifar10",
            "60,000 colour 32×32 images, 10 classes",
            "image",
            images.load_cifar10,
            (images.CIFAR_ARCHIVE,),
            images.cifar10_place,
        ),
        DataSetEntry(
            "motionsense",
            "phone motion of 24 people, 6 activities",
            "series",
            motion.load_motionsense,
            (motion.MOTIONSENSE,),
        ),
        DataSetEntry(
            "uci-har",
            "phone motion of 30 people, 6 activities (no commercial use)",
            "series",
            motion.load_uci_har,
            (motion.UCI_HAR,),
        ),
        DataSetEntry(
            "medium-titles",
            "titles of 7 publications, next word",
            "tokens",
            lambda _, progress: load_titles(progress),
            (TITLES,),
        ),
        DataSetEntry(
            "cora", "citation graph of 2,708 papers", "graph", lambda _, progress: load_cora(progress), (CORA,)
        ),
    )
}


def load(name: str, *, limit: Limit | None = None, progress: Progress | None = None) -> DataSet:
    """The data set of that name, at most `limit` examples of it (not of titles and graphs, which stay whole)."""
    limit = limit or Limit()
    plugin = plugins.find(plugins.DATASETS, name, taken=DATASETS)
    if plugin is not None:
        return load_outside(plugin, limit, progress)
    if name not in DATASETS:
        names = [*DATASETS, *(other.name for other in offered())]
        raise ConfigError(f"unknown data set {name!r}; {suggest(name, names)}, or python:module:function")
    return DATASETS[name].load(limit, progress)


def offered() -> list[plugins.Plugin]:
    """The data sets of installed packages; none of them is imported."""
    return plugins.offered(plugins.DATASETS, taken=DATASETS)


def available() -> list[DataSetInfo]:
    """Every data set, and where its files are on this machine."""
    return [
        DataSetInfo(
            name=entry.name,
            summary=entry.summary,
            kind=entry.kind,
            place=_place(entry),
            downloadable=all(source.url is not None for source in entry.sources),
        )
        for _, entry in sorted(DATASETS.items())
    ]


def _place(entry: DataSetEntry) -> str | None:
    if not entry.sources:
        return "embedded"
    if entry.place is not None:
        found = entry.place()
        return None if found is None else str(found.parent)
    paths = [find(source.path) for source in entry.sources]
    present = [path for path in paths if path is not None]
    return str(present[0].parent) if len(present) == len(paths) else None
