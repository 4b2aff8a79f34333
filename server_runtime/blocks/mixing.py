"""Updates mixed with one another before a robust rule looks at them, so that unlike data is less like an attack.

Buckets: Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing (2022). Nearest
neighbours: Allouah et al., Fixing by Mixing (2023). Both are linear, so that a rule which weighs whole updates needs
nothing but their distances: ||sum_k a_k x_k||² = -1/2 sum_kl a_k a_l ||x_k - x_l||² where sum_k a_k = 0.
"""

import hashlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Mix = Literal["none", "buckets", "neighbours"]


def mixing(mix: Mix, distances: Floats, *, hostile: int) -> Floats:
    """Rows of shares that add up to 1: what each mixed update takes of every update; distances are squared ones."""
    if mix == "neighbours":
        return _neighbours(distances, len(distances) - hostile)
    if mix == "buckets" and hostile:
        return _buckets(distances, len(distances) // (2 * hostile))
    return np.eye(len(distances))


def _neighbours(distances: Floats, count: int) -> Floats:
    """Each with the `count` - 1 that lie nearest to it; of equal ones the first."""
    own = distances.copy()
    np.fill_diagonal(own, -1.0)
    nearest = np.argsort(own, axis=1, kind="stable")[:, :count]
    shares = np.zeros_like(distances)
    np.put_along_axis(shares, nearest, 1.0 / count, axis=1)
    return shares


def _buckets(distances: Floats, size: int) -> Floats:
    """Means of `size` updates each, drawn anew in every round: no more of them than before have a liar in them.

    The draw follows from the updates, so that a server which was killed draws the same again; no device knows those
    of the others.
    """
    seed = int.from_bytes(hashlib.sha256(distances.tobytes()).digest()[:8], "little")
    order = np.random.default_rng(seed).permutation(len(distances))
    parts = np.array_split(order, -(-len(distances) // max(1, size)))
    shares = np.zeros((len(parts), len(distances)))
    for row, part in zip(shares, parts, strict=True):
        row[part] = 1.0 / len(part)
    return shares


def mixed_distances(distances: Floats, shares: Floats) -> Floats:
    """Squared distances between mixed updates; those that share nothing count as far apart as the farthest."""
    finite = np.isfinite(distances)
    known = np.where(finite, distances, distances[finite].max(initial=0.0))
    across = shares @ known @ shares.T
    own = np.diag(across) / 2
    return np.maximum(across - own[:, None] - own[None, :], 0.0)


def mixed_rows(rows: Array, shares: Floats) -> Array:
    """Mixed values [mixes, entries] of rows [updates, entries] that are NaN where a device has no entry."""
    here = ~np.isnan(rows)
    total = shares @ np.where(here, rows, 0)
    weight = shares @ here
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan).astype(rows.dtype)
