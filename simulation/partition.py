"""Ways to deal one data set out to devices; all seeded, all returning row numbers.

A partition is {device id: Share(train, val, test)} of row numbers into the labels that were given. Rows belong to one
device each, and to one part of its share; every row is dealt unless the docstring says which are lost.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError, DataError

Index = NDArray[np.int64]
Mixes = NDArray[np.float64]
MAX_DRAWS = 1000


@dataclass(frozen=True)
class Share:
    """One device's rows: to train on, to choose by, to test on."""

    train: Index
    val: Index
    test: Index

    @property
    def rows(self) -> Index:
        """All rows of the device."""
        return np.concatenate([self.train, self.val, self.test])


@dataclass(frozen=True)
class Split:
    """What part of a device's rows is for choosing (val) and for testing; the rest trains."""

    val: float = 0.0
    test: float = 0.2

    def __post_init__(self) -> None:
        if self.val < 0 or self.test < 0 or self.val + self.test >= 1:
            raise ConfigError(f"val {self.val} and test {self.test} leave nothing to train on; keep their sum below 1")


@dataclass(frozen=True)
class Least:
    """What every device must get in a random draw."""

    rows: int
    classes: int = 1


def device_ids(count: int) -> list[str]:
    """Names that sort in the order of their numbers."""
    digits = len(str(count - 1))
    return [f"device-{number:0{digits}d}" for number in range(count)]


def cut(rows: Index, split: Split) -> Share:
    """Rows in the order given: test first, then val, the rest trains; from 3 rows on no asked-for part is empty."""
    spare = len(rows) - 1
    tests = min(spare, max(1, int(len(rows) * split.test))) if split.test and spare > 0 else 0
    vals = min(spare - tests, max(1, int(len(rows) * split.val))) if split.val and spare > tests else 0
    return Share(train=rows[tests + vals :], val=rows[tests : tests + vals], test=rows[:tests])


def by_iid(rows: int, devices: int, *, rng: np.random.Generator, split: Split | None = None) -> dict[str, Share]:
    """Equal random shares; sizes differ by at most one."""
    _check(rows, devices)
    return _shares(np.array_split(rng.permutation(rows), devices), split, rng)


def by_stretches(rows: int, devices: int, *, split: Split | None = None, gap: int = 0) -> dict[str, Share]:
    """Rows in their order, a stretch of equal length for each device; its end is tested on, what is before chosen by.

    gap: how many rows are lost before each such part, since they share something with it (windows of a series).
    """
    _check(rows, devices)
    split, shares = split or Split(), {}
    for device, own in zip(device_ids(devices), np.array_split(np.arange(rows), devices), strict=True):
        ends = cut(own[::-1], split)
        test, val, train = np.sort(ends.test), np.sort(ends.val), np.sort(ends.train)
        train, val = train[: len(train) - gap * bool(len(val) or len(test))], val[: len(val) - gap * bool(len(test))]
        if not len(train):
            raise DataError(
                f"{rows} rows in {devices} stretches leave {device} nothing to train on beside a gap of {gap} rows; "
                "take fewer devices or more data"
            )
        shares[device] = Share(train, val, test)
    return shares


def by_dirichlet(
    labels: Index,
    devices: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    split: Split | None = None,
    least: int | Least = 10,
) -> dict[str, Share]:
    """Each class is cut by its own Dirichlet(alpha) draw over devices, anew until all have `least` (rows).

    Where no draw gives all of them enough rows, those with most of the last draw give some to those with too few.
    FedConv and ScaleFL: 10. HASA's CIFAR-10: alpha 0.5, Least(500, classes=3).
    """
    least = Least(least) if isinstance(least, int) else least
    _check(len(labels), devices, alpha=alpha, least=least.rows)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(MAX_DRAWS):
        parts: list[list[Index]] = [[] for _ in range(devices)]
        for rows in by_class:
            shares = np.cumsum(rng.dirichlet(np.full(devices, alpha)))[:-1]
            pieces = np.split(rng.permutation(rows), (shares * len(rows)).astype(np.int64))
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece)
        rich = all(
            sum(map(len, part)) >= least.rows and sum(map(bool, map(len, part))) >= least.classes for part in parts
        )
        if rich:
            return _shares([np.concatenate(part) for part in parts], split, rng)
    if least.classes <= 1:
        return _shares(_topped_up([np.concatenate(part) for part in parts], least.rows, rng=rng), split, rng)
    raise DataError(
        f"no Dirichlet({alpha}) draw of {MAX_DRAWS} gave each of {devices} devices {least.rows} rows of "
        f"{least.classes} classes; raise alpha, take fewer devices or ask for less"
    )


def _topped_up(parts: list[Index], least: int, *, rng: np.random.Generator) -> list[Index]:
    """Moves random rows, one at a time, from whoever has most to whoever has fewer than `least`."""
    rows = [rng.permutation(part).tolist() for part in parts]
    for poor in rows:
        while len(poor) < least:
            poor.append(max(rows, key=len).pop())
    return [np.array(own, np.int64) for own in rows]


def dirichlet_mixes(devices: int, classes: int, *, alpha: float, rng: np.random.Generator) -> Mixes:
    """One class mix per device, [devices, classes], each Dirichlet(alpha)."""
    _check(devices, devices, alpha=alpha)
    return rng.dirichlet(np.full(classes, alpha), size=devices)


def deal_by_mix(labels: Index, mixes: Mixes, *, rng: np.random.Generator) -> list[Index]:
    """floor(N / devices) rows for each device, drawn class by class from its mix; the remainder is lost.

    A class that runs out is drawn no more; a device whose classes have all run out takes from what remains. Dealing
    a test set by the same mixes gives each device the mix it trains on (FIARSE's own code draws new mixes).
    """
    devices, classes = mixes.shape
    _check(len(labels), devices)
    piles = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(classes)]
    turns = rng.permutation(np.repeat(np.arange(devices), len(labels) // devices)).tolist()
    draws = rng.random(len(turns)).tolist()
    ladders = _ladders(mixes, piles)
    dealt: list[list[int]] = [[] for _ in range(devices)]
    for device, draw in zip(turns, draws, strict=True):
        # A draw may round up to the top of the ladder; the last class that is left takes it.
        label = min(bisect_right(ladders[device], draw), classes - 1)
        while not piles[label]:
            label -= 1
        dealt[device].append(piles[label].pop())
        if not piles[label]:
            ladders = _ladders(mixes, piles)
    return [np.array(rows, np.int64) for rows in dealt]


def by_balanced_dirichlet(
    labels: Index, devices: int, *, alpha: float, rng: np.random.Generator, split: Split | None = None
) -> dict[str, Share]:
    """Equal shares, each with its own Dirichlet(alpha) mix of classes (FIARSE, FRAMP); N mod devices rows are lost."""
    mixes = dirichlet_mixes(devices, _classes(labels), alpha=alpha, rng=rng)
    return _shares(deal_by_mix(labels, mixes, rng=rng), split, rng)


def shard_table(devices: int, classes: int, *, shards: int, rng: np.random.Generator) -> Index:
    """Which classes each device gets a shard of, [devices, shards]; a class may come twice (LG-FedAvg, HyperFLoRA)."""
    if devices < 1 or shards < 1 or devices * shards % classes:
        raise ConfigError(
            f"{devices} devices with {shards} shards each cannot share {classes} classes equally; "
            f"make devices × shards a multiple of {classes}"
        )
    return rng.permutation(np.repeat(np.arange(classes), devices * shards // classes)).reshape(devices, shards)


def deal_by_shards(labels: Index, table: Index, *, rng: np.random.Generator) -> list[Index]:
    """Each class is cut into as many equal shards as the table names it; one table serves train, val and test sets."""
    dealt: list[list[Index]] = [[] for _ in table]
    for label in range(int(table.max()) + 1):
        holders = np.flatnonzero((table == label).ravel()) // table.shape[1]
        pieces = np.array_split(rng.permutation(np.flatnonzero(labels == label)), max(1, len(holders)))
        for holder, piece in zip(holders.tolist(), pieces, strict=False):
            dealt[holder].append(piece)
    return [np.concatenate(pieces) for pieces in dealt]


def by_shards(
    labels: Index, devices: int, *, shards: int, rng: np.random.Generator, split: Split | None = None
) -> dict[str, Share]:
    """A fixed number of single-class shards per device."""
    _check(len(labels), devices)
    _check_classes(labels)
    table = shard_table(devices, _classes(labels), shards=shards, rng=rng)
    return _shares(deal_by_shards(labels, table, rng=rng), split, rng)


def by_few_classes(
    labels: Index, devices: int, *, classes_each: int = 2, rng: np.random.Generator, split: Split | None = None
) -> dict[str, Share]:
    """Each device gets this many classes, always those with the fewest holders so far (pFedClub: two).

    A class's holders share it equally. Rows of classes that nobody holds (devices × classes_each < classes) are lost.
    """
    _check(len(labels), devices)
    _check_classes(labels)
    classes = _classes(labels)
    if not 1 <= classes_each <= classes:
        raise ConfigError(f"a device cannot hold {classes_each} of {classes} classes; choose 1 to {classes}")
    held = np.zeros(classes, np.int64)
    table = np.empty((devices, classes_each), np.int64)
    for row in table:
        # Rarest first, ties in random order.
        row[:] = np.lexsort((rng.random(classes), held))[:classes_each]
        held[row] += 1
    return _shares(deal_by_shards(labels, table, rng=rng), split, rng)


def by_owner(
    owner: Index,
    names: Sequence[str],
    *,
    rng: np.random.Generator,
    split: Split | None = None,
    unit: Index | None = None,
) -> dict[str, Share]:
    """One device per owner (person, publication), however few rows it has; owners without rows get no device.

    unit: rows with the same number (prefixes of one title, windows of one recording) stay in the same part.
    """
    _check(len(owner), 1)
    groups = np.arange(len(owner)) if unit is None else unit
    shares: dict[str, Share] = {}
    for number in np.unique(owner).tolist():
        device = _slug(names[number])
        if device in shares:
            raise DataError(
                f"two owners would both be device {device!r}; give them names that differ in letters or digits"
            )
        rows = np.flatnonzero(owner == number)
        units = cut(rng.permutation(np.unique(groups[rows])), split or Split())
        parts = [rows[np.isin(groups[rows], part)] for part in (units.train, units.val, units.test)]
        shares[device] = Share(*parts)
    return shares


def by_metis(
    edges: Index, nodes: int, devices: int, *, rng: np.random.Generator, split: Split | None = None
) -> dict[str, Share]:
    """Pieces of a graph of about equal size with few edges between them."""
    _check(nodes, devices)
    try:
        import pymetis
    except ImportError as err:
        raise ConfigError('cutting a graph needs METIS; install it with `pip install "fedwright[graphs]"`') from err
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    neighbours = np.split(both[:, 1], np.searchsorted(both[:, 0], np.arange(1, nodes)))
    options = pymetis.Options(seed=int(rng.integers(2**31 - 1)))
    _, piece = pymetis.part_graph(devices, [ends.tolist() for ends in neighbours], options=options)
    pieces = np.asarray(piece)
    return _shares([np.flatnonzero(pieces == number) for number in range(devices)], split, rng)


def _shares(whole: Sequence[Index], split: Split | None, rng: np.random.Generator) -> dict[str, Share]:
    ids = device_ids(len(whole))
    return {device: cut(rng.permutation(rows), split or Split()) for device, rows in zip(ids, whole, strict=True)}


def _ladders(mixes: Mixes, piles: Sequence[Sequence[int]]) -> list[list[float]]:
    """Cumulative chances over the classes that are left, per device."""
    sizes = np.array([len(pile) for pile in piles], np.float64)
    left = np.where(sizes > 0, mixes, 0.0)
    spent = left.sum(axis=1) <= 0
    left[spent] = sizes
    totals = left.sum(axis=1, keepdims=True)
    ladders: list[list[float]] = np.cumsum(left / np.where(totals > 0, totals, 1), axis=1).tolist()
    return ladders


def _slug(name: str) -> str:
    """A name as a device id."""
    slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"device-{slug}" if slug.isdigit() else slug or "device"


def _classes(labels: Index) -> int:
    return int(labels.max()) + 1


def _check_classes(labels: Index) -> None:
    """A device whose classes are all empty would have nothing to train on."""
    empty = np.flatnonzero(np.bincount(labels) == 0)
    if len(empty):
        raise DataError(
            f"class {empty[0]} has no rows, so nobody can get a share of it; number the classes without gaps or take "
            f"more rows"
        )


def _check(rows: int, devices: int, *, alpha: float = 1.0, least: int = 1) -> None:
    if devices < 1:
        raise ConfigError(f"a partition over {devices} devices is impossible; ask for at least 1")
    if not alpha > 0:
        raise ConfigError(f"alpha {alpha} is no Dirichlet parameter; choose one above 0")
    if rows < devices * least:
        raise DataError(f"{rows} rows cannot give {devices} devices {least} each; take fewer devices or more data")
