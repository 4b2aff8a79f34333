"""Widths under a fixed budget (HASA, arXiv 2606.07621).

Symbols: K devices, n_i samples, N = sum n_i, h_i score, r_i width, B budget, u_i cap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError

Floats = NDArray[np.float64]
Rule = Literal["uniform", "size", "mixed", "inverse", "hasa"]


@dataclass(frozen=True)
class WidthBudget:
    """What the widths must add up to: sum_i (n_i / N) r_i^power = total, with r_i in [least, most].

    passes: how often the widths are scaled and clipped (the paper: 2). tolerance: with one, passes go on until the
    budget is met that closely (at most MAX_PASSES).
    """

    total: float = 0.5
    least: float = 0.2
    most: float = 0.8
    power: int = 1
    passes: int = 2
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check values."""
        for name, width in (("least", self.least), ("most", self.most)):
            if not 0 < width <= 1:
                raise ConfigError(f"{name} width is {width} but must be above 0 and at most 1")
        if self.least > self.most:
            raise ConfigError(f"least width {self.least} is above the most, {self.most}; swap them")
        if self.power not in (1, 2):
            raise ConfigError(f"power is {self.power} but a budget counts widths (1) or their squares (2)")
        if self.passes < 1:
            raise ConfigError(f"passes is {self.passes} but must be at least 1")
        low, high = self.least**self.power, self.most**self.power
        if not low <= self.total <= high:
            raise ConfigError(
                f"budget {self.total} cannot be met by widths from {self.least} to {self.most}; "
                f"choose one from {low:g} to {high:g}"
            )


MAX_PASSES = 200


def ranks(values: Floats) -> Floats:
    """(rank_i - 1) / (K - 1), rank 1 the smallest, ties sharing their mean rank; 0.5 for a single value."""
    if len(values) == 1:
        return np.full(1, 0.5)
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2
    result: Floats = (mean_rank[group] - 1) / (len(values) - 1)
    return result


def sizes_scaled(samples: Floats) -> Floats:
    """(n_i - min) / (max - min); 0.5 where all are equal."""
    spread = samples.max() - samples.min()
    return np.full(len(samples), 0.5) if spread == 0 else (samples - samples.min()) / spread


def needs(rule: Rule, scores: Floats, samples: Floats, *, size_share: float = 0.5) -> Floats | None:
    """How much width each device should get, 0 to 1; None where all get the same.

    mixed: size_share * size + (1 - size_share) * rank of the score.
    """
    if rule == "uniform":
        return None
    if rule == "size":
        return sizes_scaled(samples)
    rank = ranks(scores)
    if rule == "mixed":
        return size_share * sizes_scaled(samples) + (1 - size_share) * rank
    return 1 - rank if rule == "inverse" else rank


def fit_budget(start: Floats, weights: Floats, budget: WidthBudget, caps: Floats) -> Floats:
    """Scale widths to the budget and clip them, pass after pass.

    s = (B / sum_j w_j r_j^p)^(1/p);  r_i <- clip(s r_i, least, u_i)
    """
    widths = start
    for _ in range(budget.passes if budget.tolerance is None else MAX_PASSES):
        used = float(weights @ widths**budget.power)
        if budget.tolerance is not None and abs(used - budget.total) <= budget.tolerance:
            break
        widths = np.clip((budget.total / used) ** (1 / budget.power) * widths, budget.least, caps)
    return widths


def allocate(
    rule: Rule,
    scores: Sequence[float] | Floats,
    samples: Sequence[float] | Floats,
    budget: WidthBudget,
    *,
    caps: Sequence[float] | Floats | None = None,
    size_share: float = 0.5,
) -> Floats:
    """The width of every device (Algorithm 1): need -> [least, most] -> budget passes."""
    n, h = np.asarray(samples, np.float64), np.asarray(scores, np.float64)
    if len(n) == 0 or len(n) != len(h) or not (n > 0).all():
        raise ConfigError(f"{len(h)} scores and {len(n)} sample counts give no widths; every device needs samples")
    weights = n / n.sum()
    limits = np.full(len(n), budget.most) if caps is None else np.minimum(np.asarray(caps, np.float64), budget.most)
    _check_caps(limits, weights, budget)
    need = needs(rule, h, n, size_share=size_share)
    if need is None:
        start = np.full(len(n), budget.total ** (1 / budget.power))
    else:
        start = budget.least + (budget.most - budget.least) * need
    return fit_budget(start, weights, budget, limits)


def _check_caps(limits: Floats, weights: Floats, budget: WidthBudget) -> None:
    low = np.flatnonzero(limits < budget.least)
    if len(low):
        raise ConfigError(
            f"device number {int(low[0]) + 1} can hold width {limits[low[0]]:.3f} but the least is {budget.least}; "
            f"lower the least width or leave the device out"
        )
    most = float(weights @ limits**budget.power)
    if most < budget.total - 1e-9:
        raise ConfigError(
            f"the devices' caps allow a budget of {most:.3f} at most but {budget.total} is asked for; lower the budget"
        )


def realised_budget(widths: Sequence[float], samples: Sequence[float], *, power: int = 1) -> float:
    """sum_i (n_i / N) r_i^power: the width (or its square) that the average sample trains."""
    return float(np.average(np.asarray(widths, np.float64) ** power, weights=np.asarray(samples, np.float64)))
