"""How much whole updates count where some devices may be hostile: chosen or weighed by how they lie to one another.

Krum and Multi-Krum: Blanchard et al., Machine Learning with Adversaries (2017). Similarity weights: after FoolsGold
(Fung et al., 2018), over one round's updates instead of their history, so that nothing must be remembered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.artifact import MEASURED
from fedwright.server_runtime.blocks.robust import Combine

Array = NDArray[Any]
Floats = NDArray[np.float64]
# With fewer there is no majority to go by.
LEAST = 3
# FoolsGold's bounds of a weight before the logit.
_EDGE = 0.99


def robust_weights(combine: Combine, updates: Sequence[Mapping[str, Array]]) -> list[float]:
    """What each update counts for, 0 to 1; all count fully where there are too few to compare."""
    if not combine.weighs_updates or len(updates) < LEAST:
        return [1.0] * len(updates)
    products = Products.of(updates)
    if combine.kind == "similarity":
        return list(map(float, similarity_weights(products.cosines())))
    hostile = int(combine.hostile_ratio * len(updates))
    count = 1 if combine.kind == "krum" else max(1, len(updates) - hostile)
    return list(map(float, krum_weights(products.distances(), hostile=hostile, count=count)))


@dataclass(frozen=True)
class Products:
    """Sums over the entries that two changes have both: of x_i x_j, of x_i², and how many there are."""

    products: Floats
    squares: Floats
    shared: Floats

    @classmethod
    def of(cls, updates: Sequence[Mapping[str, Array]]) -> "Products":
        """Of changes of one model, NaN where a device has no entry; what was measured is no part of them."""
        size = len(updates)
        products, squares, shared = (np.zeros((size, size)) for _ in range(3))
        for name in sorted({name for update in updates for name in update} - set(MEASURED)):
            rows = _rows([update.get(name) for update in updates])
            here = (~np.isnan(rows)).astype(np.float64)
            rows = np.nan_to_num(rows, nan=0.0)
            products += rows @ rows.T
            squares += np.square(rows) @ here.T
            shared += here @ here.T
        return cls(products, squares, shared)

    def distances(self) -> Floats:
        """||x_i - x_j||² per shared entry; those that share nothing are as far apart as can be."""
        total = np.maximum(self.squares + self.squares.T - 2 * self.products, 0.0)
        return np.where(self.shared > 0, total / np.maximum(self.shared, 1), np.inf)

    def cosines(self) -> Floats:
        """<x_i, x_j> / (||x_i|| ||x_j||) over shared entries; 0 where there are none."""
        tiny = np.finfo(np.float64).tiny
        found: Floats = self.products / np.sqrt(np.maximum(self.squares * self.squares.T, tiny))
        return found


def _rows(values: Sequence[Array | None]) -> Floats:
    """One row for each, NaN for one that lacks the tensor."""
    size = next(value.size for value in values if value is not None)
    return np.stack([np.full(size, np.nan) if value is None else value.reshape(-1) for value in values]).astype(
        np.float64
    )


def krum_weights(distances: Floats, *, hostile: int, count: int) -> Floats:
    """1 for the `count` updates that lie nearest to their n - f - 2 nearest, 0 for the others.

    score_i = sum of the n - f - 2 smallest ||x_i - x_j||²; of equal scores the first counts.
    """
    size = len(distances)
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    near = max(1, size - hostile - 2)
    scores = np.sort(others, axis=1)[:, :near].sum(axis=1)
    weights = np.zeros(size)
    weights[np.argsort(scores, kind="stable")[:count]] = 1.0
    return weights


def similarity_weights(cosines: Floats) -> Floats:
    """FoolsGold's weights: who points where another points too counts less, as copies of one attacker do.

    v_i = max_j cos_ij; cos_ij scaled by v_i / v_j where v_i < v_j; alpha_i = 1 - max_j cos_ij, scaled to a largest
    one of 1, then ln(alpha / (1 - alpha)) + 0.5, clipped to 0..1. If that leaves nobody, all count.
    """
    cosines = cosines.copy()
    np.fill_diagonal(cosines, -1.0)
    most = cosines.max(axis=1)
    pardon = np.where(most[:, None] < most[None, :], most[:, None] / np.where(most == 0, 1, most)[None, :], 1.0)
    alpha = np.clip(1 - (cosines * pardon).max(axis=1), 0.0, 1.0)
    if not alpha.max() > 0:
        return np.ones(len(alpha))
    alpha = np.clip(alpha / alpha.max(), 1 - _EDGE, _EDGE)
    weights: Floats = np.clip(np.log(alpha / (1 - alpha)) + 0.5, 0.0, 1.0)
    return weights if weights.any() else np.ones(len(weights))
