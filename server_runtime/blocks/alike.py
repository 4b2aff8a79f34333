"""Devices in groups that share one description, so that what is written from it is the same for all of a group.

Groups are those of MDAV (Domingo-Ferrer and Mateo-Sanz, Practical Data-oriented Microaggregation, 2002): whoever is
farthest from the mean of all who are left, and the nearest to it, are one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def groups_of(rows: Mapping[str, Array], least: int) -> list[list[str]]:
    """The devices in groups of at least so many; all in one where there are fewer than two such groups."""
    left, found = sorted(rows), []
    while len(left) >= 2 * least:
        table = np.stack([rows[device] for device in left]).astype(np.float64)
        seed = _by_distance(table, table.mean(axis=0))[-1]
        group = {left[place] for place in _by_distance(table, table[seed])[:least]}
        found.append(sorted(group))
        left = [device for device in left if device not in group]
    return [*found, left] if left else found


def nearest(row: Array, rows: Sequence[Array]) -> Array:
    """The one of some rows that is nearest to this one; the first of several."""
    table = np.stack(rows).astype(np.float64)
    return rows[int(_by_distance(table, row.astype(np.float64))[0])]


def _by_distance(table: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of rows, the nearest first."""
    return np.argsort(np.square(table - row).sum(axis=1), kind="stable")
