"""How much whole updates count where some devices may be hostile: chosen or weighed by how they lie to one another.

Krum and Multi-Krum: Blanchard et al., Machine Learning with Adversaries (2017). Similarity weights: after FoolsGold
(Fung et al., 2018), over one round's updates instead of their history, so that nothing must be remembered.
"""

from collections.abc import Mapping, Sequence
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
    products = inner_products(updates)
    if combine.kind == "similarity":
        return list(map(float, similarity_weights(products)))
    hostile = int(combine.hostile_ratio * len(updates))
    count = 1 if combine.kind == "krum" else max(1, len(updates) - hostile)
    return list(map(float, krum_weights(products, hostile=hostile, count=count)))


def inner_products(updates: Sequence[Mapping[str, Array]]) -> Floats:
    """G_ij = <x_i, x_j> over all tensors of changes of one shape; what was measured is no part of them."""
    products = np.zeros((len(updates), len(updates)))
    for name in updates[0]:
        if name not in MEASURED:
            rows = np.stack([update[name].reshape(-1) for update in updates]).astype(np.float64)
            products += rows @ rows.T
    return products


def krum_weights(products: Floats, *, hostile: int, count: int) -> Floats:
    """1 for the `count` updates that lie nearest to their n - f - 2 nearest, 0 for the others.

    score_i = sum of the n - f - 2 smallest ||x_i - x_j||²; of equal scores the first counts.
    """
    size = len(products)
    squares = np.diag(products)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    np.fill_diagonal(distances, np.inf)
    near = max(1, size - hostile - 2)
    scores = np.sort(distances, axis=1)[:, :near].sum(axis=1)
    weights = np.zeros(size)
    weights[np.argsort(scores, kind="stable")[:count]] = 1.0
    return weights


def similarity_weights(products: Floats) -> Floats:
    """FoolsGold's weights: who points where another points too counts less, as copies of one attacker do.

    v_i = max_j cos_ij; cos_ij scaled by v_i / v_j where v_i < v_j; alpha_i = 1 - max_j cos_ij, scaled to a largest
    one of 1, then ln(alpha / (1 - alpha)) + 0.5, clipped to 0..1. If that leaves nobody, all count.
    """
    norms = np.sqrt(np.maximum(np.diag(products), np.finfo(np.float64).tiny))
    cosines = products / np.outer(norms, norms)
    np.fill_diagonal(cosines, -1.0)
    most = cosines.max(axis=1)
    pardon = np.where(most[:, None] < most[None, :], most[:, None] / np.where(most == 0, 1, most)[None, :], 1.0)
    alpha = np.clip(1 - (cosines * pardon).max(axis=1), 0.0, 1.0)
    if not alpha.max() > 0:
        return np.ones(len(alpha))
    alpha = np.clip(alpha / alpha.max(), 1 - _EDGE, _EDGE)
    weights: Floats = np.clip(np.log(alpha / (1 - alpha)) + 0.5, 0.0, 1.0)
    return weights if weights.any() else np.ones(len(weights))
