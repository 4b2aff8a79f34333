"""Means of what several devices hold or say, all of it at once, by every choice of update.combine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.server_runtime.blocks.robust import Combine, mean_by_entry
from fedwright.server_runtime.blocks.robust_weights import robust_weights

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def robust_mean(rows: Sequence[Tensors], combine: Combine, *, changes: Sequence[Tensors]) -> dict[str, Array]:
    """The mean of tensors that all have, one voice each; changes: what is compared where whole updates are weighed.

    Medians and trimmed means leave out entries that are NaN.
    """
    if combine.by_entry:
        return {name: mean_by_entry([row[name] for row in rows], combine) for name in rows[0]}
    weights = np.array(robust_weights(combine, changes))
    shares = weights / weights.sum()
    return {name: _weighed([row[name] for row in rows], shares) for name in rows[0]}


def _weighed(rows: Sequence[Array], shares: Array) -> Array:
    mean: Array = np.tensordot(shares, np.stack(rows), axes=1).astype(rows[0].dtype)
    return mean
