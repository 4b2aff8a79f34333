"""How much of a single sample a device has told in all its tasks with noise, kept by the device itself.

A server's ledger is the server's word. This one is by Rényi divergence of whole orders a, for sums with noise σ · clip
over samples each of which is taken with chance q (Mironov et al. 2019, Sec. 3.3), made (ε, δ) by Canonne et al. 2020:

    D_a = log( Σ_k C(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 σ²)) ) / (a - 1);     q = 1:  D_a = a / (2 σ²)
    ε = min over a of  Σ D_a + log(1 - 1/a) - (log δ + log a) / (a - 1)
"""

import math
from collections.abc import Sequence

from fedwright.protocol.messages import Task

ORDERS: tuple[int, ...] = (*range(2, 65), 96, 128, 256, 512)
DELTA = 1e-6
# With less it is no noise that anybody would call so, and all is told; a number that JSON knows.
LEAST_NOISE, MOST = 1e-2, 1e200


def told_by(task: Task, samples: int) -> list[float]:
    """What a task with noise tells of one sample, by orders; samples: that the device has."""
    if task.privacy is not None:
        recipe = task.recipe
        steps = recipe.epochs * -(-samples // recipe.batch) if recipe.steps is None else recipe.steps
        ratio = min(1.0, recipe.batch / samples) if samples else 1.0
        return [steps * divergence(order, task.privacy.noise_multiplier, ratio) for order in ORDERS]
    noise = 0.0 if task.sum is None else task.sum.noise_multiplier or 0.0
    return [divergence(order, noise, 1.0) for order in ORDERS]


def divergence(order: int, noise: float, ratio: float) -> float:
    """D_a of one sum."""
    if noise < LEAST_NOISE:
        return MOST
    if ratio >= 1:
        return order / (2 * noise * noise)
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-ratio)
        + k * math.log(ratio)
        + k * (k - 1) / (2 * noise * noise)
        for k in range(order + 1)
    ]
    most = max(terms)
    return (most + math.log(sum(math.exp(term - most) for term in terms))) / (order - 1)


def epsilon_of(spent: Sequence[float]) -> float:
    """ε at DELTA of what was told, by orders; nothing told is 0."""
    if not any(spent):
        return 0.0
    found: list[float] = [
        told + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
        for told, order in zip(spent, ORDERS, strict=True)
    ]
    return max(0.0, min(found))
