"""A data set dealt out to the devices of a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import LocalData
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import PublicSection, SimulateSection
from fedwright.server_runtime.embedded_sets import HOLDOUT
from fedwright.server_runtime.public_data import PublicData
from fedwright.server_runtime.seeds import derive_seed
from fedwright.simulation import datasets
from fedwright.simulation import partition as ways
from fedwright.simulation.datasets import DataSet, Limit
from fedwright.simulation.partition import Share, Split

Array = NDArray[Any]
SPLIT = Split(val=0.0, test=0.2)


@dataclass(frozen=True)
class Dealt:
    """All examples once, and the rows of each device: to train on, to choose by, to test on."""

    x: Array
    y: Array
    classes: int
    shares: Mapping[str, Share]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x.shape[1:])


def local_data(dealt: Dealt, share: Share) -> LocalData:
    """One device's rows, as its agent would hold them."""
    y = dealt.y[share.train]
    return LocalData(
        x=dealt.x[share.train],
        y=y,
        x_holdout=dealt.x[share.test],
        y_holdout=dealt.y[share.test],
        classes=dealt.classes,
        class_counts=tuple(np.bincount(y, minlength=dealt.classes).tolist()),
        input_shape=dealt.input_shape,
    )


def deal(section: SimulateSection, *, seed: int, split: Split = SPLIT, public: PublicSection | None = None) -> Dealt:
    """Load the data set and deal it as the section says; the same seed deals the same rows.

    public: what of the data set is the server's own by its name, and so no device's.
    """
    tests = None if section.rows is None else max(1, section.rows // 5)
    data = datasets.load(section.dataset, limit=Limit(train=section.rows, test=tests))
    if data.kind == "graph":
        raise ConfigError(f"data set {section.dataset} is one graph, which cannot be dealt row by row; choose another")
    if section.partition == "owner":
        return _by_given_owner(data)
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test]).astype(np.int64)
    if public is not None and public.data == section.dataset + HOLDOUT:
        x, y = data.x_train, data.y_train.astype(np.int64)
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    return Dealt(x, y, len(data.classes), _shares(section, y, rng, split))


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
    if section.file is not None or section.data is not None or not section.rows:
        return dealt, None
    rows = np.concatenate([own.train for _, own in sorted(dealt.shares.items())])
    if section.rows >= len(rows):
        raise ConfigError(f"public.rows is {section.rows} but the devices have {len(rows)} in all; take fewer")
    taken = np.sort(np.random.default_rng(derive_seed(seed, "public")).choice(rows, section.rows, replace=False))
    shares = {
        device: replace(own, train=own.train[~np.isin(own.train, taken, assume_unique=True)])
        for device, own in dealt.shares.items()
    }
    return replace(dealt, shares=shares), PublicData(dealt.x[taken], dealt.y[taken] if section.labelled else None)


def _shares(section: SimulateSection, y: Array, rng: np.random.Generator, split: Split) -> dict[str, Share]:
    devices = section.devices
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


def _by_given_owner(data: DataSet) -> Dealt:
    """One device per owner; a data set's own division into train, val and test is kept."""
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
    shares = {}
    for device, owner in zip(ids, np.unique(data.owner_train).tolist(), strict=True):
        rows = [
            np.empty(0, np.int64) if part is None else start + np.flatnonzero(part[2] == owner)
            for part, start in zip(parts, starts, strict=True)
        ]
        shares[device] = Share(*rows)
    x = np.concatenate([part[0] for part in present])
    return Dealt(x, np.concatenate([part[1] for part in present]).astype(np.int64), len(data.classes), shares)
