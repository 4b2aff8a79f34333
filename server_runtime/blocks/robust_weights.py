"""How much whole updates count where some devices may be hostile: chosen or weighed by how they lie to one another.

Krum and Multi-Krum: Blanchard et al., Machine Learning with Adversaries (2017). Centred clipping: Karimireddy et al.,
Learning from History for Byzantine Robust Optimization (2021), around a centre of each round's own. Similarity weights
share with FoolsGold (Fung et al., 2018) that cosines decide and that copies count once; FoolsGold itself trusts whoever
is unlike all others, and so follows an attacker who has no accomplice.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.server_runtime.blocks.mixing import mixed_distances, mixing
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.blocks.update_products import Products

Array = NDArray[Any]
Floats = NDArray[np.float64]
# With fewer there is no majority to go by.
LEAST = 3
# Beyond this cosine two changes count as copies: devices with data of their own are never that alike.
COPY = 0.999
# An outlier is so many times as far from a majority as the middle one of the nearest, or so far on the other side of
# what most have in common, beside a share of the same length for each.
FAR, AGAINST = 1.5, 0.8
# Steps of centred clipping: from a centre amid the majority it is nearly there after these.
CLIPPINGS = 10
# Of submodels Krum takes a few: each next one counts so little where an earlier one has the same entries.
MOST_TAKEN, BEHIND = 4, 1e-3


def robust_weights(combine: Combine, updates: Sequence[Mapping[str, Array]]) -> list[float]:
    """What each update counts for, 0 to 1; all count fully where there are too few to compare."""
    if not combine.weighs_updates or len(updates) < LEAST:
        return [1.0] * len(updates)
    products = Products.of(updates)
    hostile = int(combine.hostile_ratio * len(updates))
    far = np.zeros(len(updates), bool)
    if combine.kind == "outliers" and combine.mix != "none":
        # Mixed with others they would hide among them, and who is mixed with them would count less.
        far = far_off(products.distances(), hostile=hostile)
    left = products.only(~far)
    shares = mixing(combine.mix, left.distances(), hostile=hostile - int(far.sum()))
    weights = np.zeros(len(updates))
    weights[~far] = shares.T @ _weights(combine, left, shares, hostile=hostile - int(far.sum()))
    return list(map(float, weights / weights.max()))


def _weights(combine: Combine, products: Products, shares: Floats, *, hostile: int) -> Floats:
    """What each mixed update counts for, where so many of those that were mixed may be hostile."""
    if combine.kind == "similarity":
        return similarity_weights(products.cosines(shares))
    distances = mixed_distances(products.distances(), shares)
    # Where several were put into one there are fewer to leave out.
    hostile = min(hostile, int(combine.hostile_ratio * len(distances)))
    if combine.kind == "outliers":
        return inlier_weights(distances, products.cosines(shares), hostile=hostile)
    if combine.kind == "centred_clipping":
        return clipped_weights(distances)
    if combine.kind == "majority":
        return majority_weights(distances, count=len(distances) - hostile)
    found = krum_weights(distances, hostile=hostile, count=max(1, len(distances) - hostile))
    return nearest_weights(distances, found, products.shared, hostile=hostile) if combine.kind == "krum" else found


def krum_weights(distances: Floats, *, hostile: int, count: int) -> Floats:
    """1 for the `count` updates that lie nearest to their n - f - 2 nearest, 0 for the others.

    score_i = sum of the n - f - 2 smallest ||x_i - x_j||²; of equal scores the first counts.
    """
    weights = np.zeros(len(distances))
    weights[_by_krum(distances, hostile=hostile)[:count]] = 1.0
    return weights


def _by_krum(distances: Floats, *, hostile: int) -> NDArray[np.intp]:
    """All by their scores, the lowest first."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    near = max(1, len(distances) - hostile - 2)
    return np.argsort(np.sort(others, axis=1)[:, :near].sum(axis=1), kind="stable")


def nearest_weights(distances: Floats, allowed: Floats, shared: Floats, *, hostile: int) -> Floats:
    """1 for Krum's first; of submodels also some for those that have entries which no earlier one has.

    shared: how many entries two have both. Where several that are taken have an entry, the first of them decides it.
    """
    taken: list[int] = []
    mixes = len(distances) != len(shared)
    for place in _by_krum(distances, hostile=hostile):
        if not taken or (
            not mixes and allowed[place] and all(shared[place, place] > shared[place, one] for one in taken)
        ):
            taken.append(int(place))
    weights = np.zeros(len(distances))
    weights[taken[:MOST_TAKEN]] = BEHIND ** np.arange(len(taken[:MOST_TAKEN]))
    return weights


def majority_weights(distances: Floats, *, count: int) -> Floats:
    """1 for the `count` updates to which a majority lies nearest, 0 for the others.

    score_i = the distance to the floor(n / 2)-th nearest other, so that with its sender a majority lies within it.
    Liars in the minority have an honest one among so many: how close they keep to one another does not help them,
    while Krum's sum of distances rewards it.
    """
    weights = np.zeros(len(distances))
    weights[np.argsort(_reach(distances), kind="stable")[:count]] = 1.0
    return weights


def inlier_weights(distances: Floats, cosines: Floats, *, hostile: int) -> Floats:
    """0 for at most `hostile` updates that stand out, 1 for all others: who is merely unlike is not left out.

    First those whose distance to the floor(n / 2)-th nearest other is above FAR times its median over the nearest
    n - `hostile`. Then those that pull the other way: v, the first eigenvector of the cosines without their diagonal,
    says how much each goes along with what most have in common; out is v_i < -AGAINST / sqrt(n), the lowest first.
    """
    size = len(distances)
    weights = np.where(far_off(distances, hostile=hostile), 0.0, 1.0)
    along = _common_direction(cosines)
    rest = np.argsort(np.where(weights > 0, along, np.inf), kind="stable")[: hostile - int(np.sum(weights == 0))]
    weights[rest[along[rest] < -AGAINST / np.sqrt(size)]] = 0.0
    return weights


def far_off(distances: Floats, *, hostile: int) -> NDArray[np.bool_]:
    """Which are so far from a majority that they stand out, at most `hostile`."""
    reach = np.sqrt(_reach(distances))
    order = np.argsort(reach, kind="stable")
    near, last = order[: len(distances) - hostile], order[len(distances) - hostile :]
    far = np.zeros(len(distances), bool)
    far[last] = reach[last] > FAR * np.median(reach[near])
    return far


def _common_direction(cosines: Floats) -> Floats:
    """How much each goes along with what most have in common, with unit length over all; most go along."""
    others = (cosines + cosines.T) / 2
    np.fill_diagonal(others, 0.0)
    first = np.linalg.eigh(others)[1][:, -1]
    clear = np.abs(first) > 1 / (3 * np.sqrt(len(first)))
    side = np.sign(first[clear]).sum() or first.sum()
    return np.asarray(first if side >= 0 else -first)


def _reach(distances: Floats) -> Floats:
    """How far it is from each to the floor(n / 2)-th nearest other."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    middle = max(1, len(others) // 2) - 1
    return np.asarray(np.partition(others, middle, axis=1)[:, middle])


def clipped_weights(distances: Floats) -> Floats:
    """What each counts for when all are drawn in to the median distance from a centre, which then is their mean.

    v ← v + 1/n sum_i (x_i - v) min(1, t / ||x_i - v||), t the median of ||x_i - v||, from the x_i to which a majority
    lies nearest. v stays a mean of the x_i, so that only its shares c are followed:
    ||x_i - v||² = sum_j c_j D_ij - 1/2 sum_jk c_j c_k D_jk.
    """
    size = len(distances)
    known = mixed_distances(distances, np.eye(size))
    centre = np.zeros(size)
    centre[np.argmin(_reach(distances))] = 1.0
    for _ in range(CLIPPINGS):
        away = np.sqrt(np.maximum(known @ centre - centre @ known @ centre / 2, 0.0))
        kept = np.minimum(1.0, np.median(away) / np.maximum(away, np.finfo(np.float64).tiny))
        centre = centre * (1 - kept.mean()) + kept / size
    return centre


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
