"""How much whole updates count where some devices may be hostile: chosen or weighed by how they lie to one another.

Krum and Multi-Krum: Blanchard et al., Machine Learning with Adversaries (2017). Similarity weights share with
FoolsGold (Fung et al., 2018) that cosines decide and that copies count once; FoolsGold itself trusts whoever is unlike
all others, and so follows an attacker who has no accomplice.
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
# Beyond this cosine two changes count as copies: devices with data of their own are never that alike.
COPY = 0.999


def robust_weights(combine: Combine, updates: Sequence[Mapping[str, Array]]) -> list[float]:
    """What each update counts for, 0 to 1; all count fully where there are too few to compare."""
    if not combine.weighs_updates or len(updates) < LEAST:
        return [1.0] * len(updates)
    products = Products.of(updates)
    if combine.kind == "similarity":
        return list(map(float, similarity_weights(products.cosines())))
    hostile = int(combine.hostile_ratio * len(updates))
    if combine.kind == "majority":
        return list(map(float, majority_weights(products.distances(), count=len(updates) - hostile)))
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


def majority_weights(distances: Floats, *, count: int) -> Floats:
    """1 for the `count` updates to which a majority lies nearest, 0 for the others.

    score_i = the distance to the floor(n / 2)-th nearest other, so that with its sender a majority lies within it.
    Liars in the minority have an honest one among so many: how close they keep to one another does not help them,
    while Krum's sum of distances rewards it.
    """
    size = len(distances)
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    middle = max(1, size // 2) - 1
    scores = np.partition(others, middle, axis=1)[:, middle]
    weights = np.zeros(size)
    weights[np.argsort(scores, kind="stable")[:count]] = 1.0
    return weights


def similarity_weights(cosines: Floats) -> Floats:
    """How much each points where most others point; those that point the same way to a hair share one voice.

    m_i = lower median over j of cos_ij; w_i = max(0, m_i) / copies_i, scaled to a largest one of 1. An attacker in the
    minority has a median among the honest, whatever its accomplices send. If that leaves nobody, all count.
    """
    seen = cosines.copy()
    np.fill_diagonal(seen, 1.0)
    middle = (len(seen) - 1) // 2
    agreement = np.maximum(np.partition(seen, middle, axis=1)[:, middle], 0.0)
    copies = (seen > COPY).sum(axis=1)
    weights: Floats = agreement / copies
    return weights / weights.max() if weights.max() > 0 else np.ones(len(weights))
