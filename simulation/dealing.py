"""A data set dealt out to the devices of a simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data.graph import inner_edges
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.data.targets import counts_of
from fedwright.protocol.class_names import places_in
from fedwright.protocol.data_summary import DataSummary
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import CLASSIFY
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.public_data.embedded_sets import HOLDOUT
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.public_data.section import PublicSection
from fedwright.server_runtime.seeds import derive_seed
from fedwright.simulation import datasets, own_data
from fedwright.simulation import partition as ways
from fedwright.simulation.datasets import DataSet, Limit
from fedwright.simulation.kinds_of_rows import kinds_of
from fedwright.simulation.partition import Share, Split

Array = NDArray[Any]
TEST_RATIO = 0.2
# So many training examples are taken for one of a data set's own test examples.
TESTS = 5


@dataclass(frozen=True)
class Labelling:
    """What the labels of one device's rows say: of how many classes or targets, what these are called, and what for."""

    classes: int
    class_names: tuple[str, ...] = ()
    goal: str = CLASSIFY


@dataclass(frozen=True)
class Dealt:
    """All examples once, and the rows of each device: to train on, to choose by, to test on.

    class_names: of each device that names its classes, in the order in which its labels number them.
    edges: of a graph whose nodes the examples are; a device has those between its own nodes.
    goal: what the labels are for; of numbers to predict, `classes` is how many there are.
    """

    x: Array
    y: Array
    classes: int
    shares: Mapping[str, Share]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edges: Array | None = None
    goal: str = CLASSIFY

    def labelling(self, device: str) -> Labelling:
        """How one device numbers its classes."""
        names = self.class_names.get(device, ())
        return Labelling(len(names) or self.classes, names, self.goal)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x.shape[1:])


def local_data(dealt: Dealt, device: str) -> LocalData:
    """One device's rows, as its agent would hold them."""
    return rows_of(dealt.x, dealt.y, dealt.shares[device], labelling=dealt.labelling(device), edges=dealt.edges)


# Numpy puts the name together anew each time, which is much for thousands of devices.
_name_of: Callable[[np.dtype[Any]], str] = lru_cache(maxsize=16)(str)


def plain_summary(dealt: Dealt, device: str) -> DataSummary:
    """What a device tells of its rows to a run that asks for nothing beyond its classes."""
    share, labelling = dealt.shares[device], dealt.labelling(device)
    return DataSummary(
        samples=len(share.train),
        holdout=len(share.test),
        input_shape=list(dealt.input_shape),
        classes=labelling.classes,
        class_counts=list(counts_of(dealt.y[share.train], labelling.classes)),
        class_names=list(labelling.class_names) or None,
        input_dtype=_name_of(dealt.x.dtype),
        goal=labelling.goal,
    )


def rows_of(x: Array, y: Array, share: Share, *, labelling: Labelling, edges: Array | None) -> LocalData:
    """A share of a data set as the data of one device."""
    own = y[share.train]
    return LocalData(
        x=x[share.train],
        y=own,
        x_holdout=x[share.test],
        y_holdout=y[share.test],
        classes=labelling.classes,
        class_counts=counts_of(own, labelling.classes),
        input_shape=tuple(x.shape[1:]),
        class_names=labelling.class_names,
        edges=None if edges is None else inner_edges(edges, np.concatenate([share.train, share.test])),
        goal=labelling.goal,
    )


def deal(section: SimulateSection, *, seed: int, public: PublicSection | None = None, goal: str = CLASSIFY) -> Dealt:
    """Load the data set and deal it as the section says; the same seed deals the same rows.

    Rows to choose by (val_ratio) are taken from those that would train: what is tested on stays the same.
    public: what of the data set is the server's own by its name, and so no device's. goal: what the labels are to be
    for; a source that says nothing of that is read so.
    """
    split = Split(val=section.val_ratio, test=TEST_RATIO)
    if section.data is not None:
        return _deal_own(section, section.data, seed=seed, split=split, goal=goal)
    if goal != CLASSIFY:
        raise ConfigError(
            f"data set {section.dataset} has single classes, but model.task is {goal!r}; name data for it with "
            "simulate.data, or leave model.task out"
        )
    data = _load(section)
    if section.partition == "owner":
        return _by_given_owner(data, split)
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test]).astype(np.int64)
    if public is not None and public.data == section.dataset + HOLDOUT:
        x, y = data.x_train, data.y_train.astype(np.int64)
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    edges = data.extra.get("edges") if data.kind == "graph" else None
    return Dealt(x, y, len(data.classes), _shares(section, y, rng, split, edges), edges=edges)


def _load(section: SimulateSection) -> DataSet:
    """The part of a data set that the section names; a fifth as many rows of its test set as of the others."""
    skip, rows = section.skip_rows, section.rows
    if not skip:
        tests = None if rows is None else max(1, rows // TESTS)
        return datasets.load(section.dataset, limit=Limit(train=rows, test=tests))
    if section.partition == "owner":
        raise ConfigError("simulate.skip_rows would leave out whole owners; leave it out, or choose another partition")
    limit = Limit() if rows is None else Limit(train=skip + rows, test=max(1, skip // TESTS) + max(1, rows // TESTS))
    data = datasets.load(section.dataset, limit=limit)
    if len(data.y_train) < skip + (rows or 1):
        raise ConfigError(
            f"simulate.skip_rows {skip} and rows {rows} are more than the {len(data.y_train)} examples of "
            f"{section.dataset}; take fewer"
        )
    behind, tested = slice(skip, None), slice(max(1, skip // TESTS), None)
    return replace(
        data,
        x_train=data.x_train[behind],
        y_train=data.y_train[behind],
        x_test=data.x_test[tested],
        y_test=data.y_test[tested],
    )


def _deal_own(section: SimulateSection, source: str, *, seed: int, split: Split, goal: str) -> Dealt:
    """The user's own data: one file per device as it is, or one source dealt out."""
    if section.dataset != SimulateSection.dataset:
        raise ConfigError(f"simulate.data {source!r} and simulate.dataset {section.dataset!r} are both given; keep one")
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    if own_data.is_one_per_device(source):
        devices = own_data.load_devices(source, goal=goal)
        rows, shares = own_data.joined(devices)
        names = {device: data.class_names for device, data in devices.items() if data.class_names}
        return Dealt(rows.x, rows.y, rows.classes, shares, names, rows.edges, rows.goal)
    if section.partition == "owner":
        raise ConfigError(
            f"simulate.data {source!r} does not say who made each example; choose another partition, or give one file "
            f"per device with {own_data.DEVICES}FOLDER"
        )
    rows = own_data.load_rows(source, goal=goal, most=section.rows, rng=rng)
    if rows.overlaps and section.partition != "stretches":
        raise ConfigError(
            f"simulate.partition {section.partition!r} would test on hours that were trained on: the windows of a "
            'series overlap; set it to "stretches", or give one file per device'
        )
    if section.partition == "stretches":
        shares = ways.by_stretches(len(rows.y), section.devices, split=split, gap=rows.overlaps)
    else:
        shares = _shares(section, kinds_of(rows.y, rows.goal), rng, split, rows.edges)
    names = dict.fromkeys(shares, rows.class_names) if rows.class_names else {}
    return Dealt(rows.x, rows.y, rows.classes, shares, names, rows.edges, rows.goal)


def thin(dealt: Dealt, share: float, *, seed: int) -> Dealt:
    """The same devices with only a share of their training rows, at least 32 where there are as many."""
    rng = np.random.default_rng(derive_seed(seed, "thin"))
    shares = {}
    for device, own in sorted(dealt.shares.items()):
        kept = min(len(own.train), max(32, round(share * len(own.train))))
        shares[device] = replace(own, train=np.sort(rng.choice(own.train, kept, replace=False)))
    return replace(dealt, shares=shares)


def reserve(dealt: Dealt, section: PublicSection, *, seed: int) -> tuple[Dealt, PublicData | None]:
    """Take the server's own examples out of what the devices train on, so that no device holds one of them."""
    if section.given or not section.rows:
        return dealt, None
    rows = np.concatenate([own.train for _, own in sorted(dealt.shares.items())])
    if section.rows >= len(rows):
        raise ConfigError(f"public.rows is {section.rows} but the devices have {len(rows)} in all; take fewer")
    taken = np.sort(np.random.default_rng(derive_seed(seed, "public")).choice(rows, section.rows, replace=False))
    shares = {
        device: replace(own, train=own.train[~np.isin(own.train, taken, assume_unique=True)])
        for device, own in dealt.shares.items()
    }
    y, names = _labels_of(dealt, taken)
    return replace(dealt, shares=shares), PublicData(dealt.x[taken], y if section.labelled else None, names)


def _labels_of(dealt: Dealt, rows: Array) -> tuple[Array, tuple[str, ...]]:
    """The labels of rows of several devices, in one numbering, and the names of that."""
    if not dealt.class_names:
        return dealt.y[rows], ()
    names = tuple(sorted({name for own in dealt.class_names.values() for name in own}))
    if dealt.class_names.keys() != dealt.shares.keys():
        raise ConfigError("public.rows takes examples of all devices, but only some name their classes; name all")
    y = dealt.y.copy()
    for device, own in dealt.class_names.items():
        held = dealt.shares[device].rows
        y[held] = np.array(places_in(names, own), np.int64)[dealt.y[held]]
    return y[rows], names


def _shares(
    section: SimulateSection, y: Array, rng: np.random.Generator, split: Split, edges: Array | None
) -> dict[str, Share]:
    devices = section.devices
    if section.partition == "metis":
        if edges is None:
            raise ConfigError("simulate.partition 'metis' cuts a graph, but the data are none; choose another")
        return ways.by_metis(edges, len(y), devices, rng=rng, split=split)
    if section.partition == "stretches":
        return ways.by_stretches(len(y), devices, split=split)
    if section.partition == "iid":
        return ways.by_iid(len(y), devices, rng=rng, split=split)
    if section.partition == "dirichlet":
        least = ways.Least(section.least, section.least_classes)
        return ways.by_dirichlet(y, devices, alpha=section.alpha, rng=rng, split=split, least=least)
    if section.partition == "balanced-dirichlet":
        return ways.by_balanced_dirichlet(y, devices, alpha=section.alpha, rng=rng, split=split)
    if section.partition == "shards":
        return ways.by_shards(y, devices, shards=section.per_device, rng=rng, split=split)
    return ways.by_few_classes(y, devices, classes_each=section.per_device, rng=rng, split=split)


def _by_given_owner(data: DataSet, split: Split) -> Dealt:
    """One device per owner; a data set's own division into train, val and test is kept.

    Without rows to choose by in the data set, the last of each owner's training rows of every class are those: rows
    that follow one another in time are alike.
    """
    if data.owner_train is None or data.owner_test is None:
        raise ConfigError(f"data set {data.name} does not say who made each example; choose another partition")
    parts = [(data.x_train, data.y_train, data.owner_train), None, (data.x_test, data.y_test, data.owner_test)]
    if "x_val" in data.extra:
        parts[1] = (data.extra["x_val"], data.extra["y_val"], data.extra["owner_val"])
    present = [part for part in parts if part is not None]
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += 0 if part is None else len(part[1])
    ids = list(ways.by_owner(np.asarray(data.owner_train, np.int64), data.owners, rng=np.random.default_rng(0)))
    y = np.concatenate([part[1] for part in present]).astype(np.int64)
    shares = {}
    for device, owner in zip(ids, np.unique(data.owner_train).tolist(), strict=True):
        rows = [
            np.empty(0, np.int64) if part is None else start + np.flatnonzero(part[2] == owner)
            for part, start in zip(parts, starts, strict=True)
        ]
        if split.val and not len(rows[1]):
            rows[:2] = _last_of_each_class(rows[0], y, split.val)
        shares[device] = Share(*rows)
    return Dealt(np.concatenate([part[0] for part in present]), y, len(data.classes), shares)


def _last_of_each_class(rows: Array, y: Array, ratio: float) -> list[Array]:
    """Rows in two parts; the second has this share of every class, its last rows."""
    own = [rows[y[rows] == label] for label in np.unique(y[rows])]
    last = np.concatenate([part[len(part) - int(ratio * len(part)) :] for part in own])
    return [rows[~np.isin(rows, last)], np.sort(last)]
