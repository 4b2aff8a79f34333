"""Ways to deal one data set out to devices; all seeded, all returning row numbers.

A partition is {device id: Share(train, val, test)} of row numbers into the labels that were given.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError, DataError

Index = NDArray[np.int64]
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


def device_ids(count: int) -> list[str]:
    """Names that sort in the order of their numbers."""
    digits = len(str(count - 1))
    return [f"device-{number:0{digits}d}" for number in range(count)]


def by_dirichlet(
    labels: Index,
    devices: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    split: Split | None = None,
    least: int = 10,
) -> dict[str, Share]:
    """Each class is cut by its own Dirichlet(alpha) draw over devices, anew until all have `least` rows."""
    _check(labels, devices, alpha=alpha, least=least)
    classes = np.unique(labels)
    for _ in range(MAX_DRAWS):
        parts: list[list[Index]] = [[] for _ in range(devices)]
        for label in classes:
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = (np.cumsum(rng.dirichlet(np.full(devices, alpha)))[:-1] * len(rows)).astype(np.int64)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        whole = [np.concatenate(part) for part in parts]
        if min(len(rows) for rows in whole) >= least:
            return _shares(whole, split or Split(), rng)
    raise DataError(
        f"no Dirichlet({alpha}) draw of {MAX_DRAWS} gave each of {devices} devices {least} rows; "
        f"raise alpha, take fewer devices or ask for fewer rows"
    )


def _shares(whole: list[Index], split: Split, rng: np.random.Generator) -> dict[str, Share]:
    return {
        device: cut(rng.permutation(rows), split) for device, rows in zip(device_ids(len(whole)), whole, strict=True)
    }


def cut(rows: Index, split: Split) -> Share:
    """Split rows in the order given: test first, then val, the rest trains; each asked-for part gets at least one."""
    if split.val < 0 or split.test < 0 or split.val + split.test >= 1:
        raise ConfigError(f"val {split.val} and test {split.test} leave nothing to train on; keep their sum below 1")
    tests = _count(len(rows), split.test)
    vals = _count(len(rows), split.val)
    return Share(train=rows[tests + vals :], val=rows[tests : tests + vals], test=rows[:tests])


def _count(rows: int, part: float) -> int:
    return 0 if part == 0 else max(1, int(rows * part))


def _check(labels: Index, devices: int, *, alpha: float = 1.0, least: int = 1) -> None:
    if devices < 1:
        raise ConfigError(f"a partition over {devices} devices is impossible; ask for at least 1")
    if alpha <= 0:
        raise ConfigError(f"alpha {alpha} is no Dirichlet parameter; choose one above 0")
    if devices * least > len(labels):
        raise DataError(
            f"{len(labels)} rows cannot give {devices} devices {least} rows each; take fewer devices or more data"
        )
