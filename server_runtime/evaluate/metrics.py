"""Figures over a fleet: accuracy per device at its own width, budget, cost; and statistics over paired seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import LESS_IS_BETTER

Floats = Sequence[float] | NDArray[np.float64]


def fleet_summary(accuracy: Floats, loss: Floats, samples: Sequence[int]) -> dict[str, float]:
    """Mean over devices, worst, 10th percentile (linear), mean weighted by samples, and perplexity.

    perplexity = mean over devices of exp(mean cross-entropy)
    """
    if not len(accuracy):
        raise ConfigError("no device has held-out samples to measure on; give the devices more data")
    values = np.asarray(accuracy, np.float64)
    return {
        "mean": float(values.mean()),
        "worst": float(values.min()),
        "p10": float(np.percentile(values, 10)),
        "weighted_mean": float(np.average(values, weights=np.asarray(samples, np.float64))),
        "perplexity": float(np.mean(np.exp(np.minimum(np.asarray(loss, np.float64), 700.0)))),
    }


def task_summary(measures: Sequence[Mapping[str, float]], samples: Sequence[int]) -> dict[str, float]:
    """Of each measure of a task: its mean over devices, the worst device's, and the mean weighted by samples.

    A device that cannot say a measure, such as R^2 of labels that are all equal, does not count in it.
    """
    found: dict[str, float] = {}
    for name in sorted({name for one in measures for name in one}):
        known = [(one[name], n) for one, n in zip(measures, samples, strict=True) if name in one]
        values = [value for value, _ in known]
        found[name] = float(np.mean(values))
        found[f"{name}_worst"] = float(max(values) if name in LESS_IS_BETTER else min(values))
        found[f"{name}_weighted"] = float(np.average(values, weights=[n for _, n in known]))
    return found


@dataclass(frozen=True)
class LstmCost:
    """The cost of HASA's language model at hidden size h = floor(hidden r); both LSTM bias vectors count.

    params(h) = V E + 4 h (E + h) + 8 h + h V + V          MACs(h) = L 4 h (E + h) + h V
    """

    vocabulary: int = 3437
    embedding: int = 128
    hidden: int = 256
    words: int = 23

    def size(self, width: float) -> int:
        """Hidden units at a width."""
        return math.floor(round(self.hidden * width, 9))

    def params(self, width: float) -> int:
        """Parameters of the submodel."""
        h, v, e = self.size(width), self.vocabulary, self.embedding
        return v * e + 4 * h * (e + h) + 8 * h + h * v + v

    def macs(self, width: float) -> int:
        """Multiply-accumulates of one prediction; the output layer is applied once."""
        h = self.size(width)
        return self.words * 4 * h * (self.embedding + h) + h * self.vocabulary


@dataclass(frozen=True)
class Paired:
    """Differences a - b over the same seeds; the mean lies in the interval with 95 % confidence (t distribution).

    error: the standard error of the mean. sign_p: of the sign test, two-sided; pairs that are equal do not count.
    """

    mean: float
    wins: int
    pairs: int
    t: float
    t_p: float
    wilcoxon_p: float
    effect: float
    interval: tuple[float, float]
    error: float = 0.0
    sign_p: float = 1.0


def paired(a: Floats, b: Floats) -> Paired:
    """Paired t test, Wilcoxon signed-rank test and effect size (mean difference over its standard deviation).

    With fewer than two pairs, or equal differences, the tests say nothing: p is 1. One pair has no interval.
    """
    # SciPy takes a second to import, which a listing of commands should not pay.
    from scipy import stats  # type: ignore[import-untyped]

    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ConfigError(f"{x.shape} and {y.shape} values cannot be paired; give as many of one as of the other")
    difference = x - y
    mean, wins = float(difference.mean()), int((difference > 0).sum())
    unequal = int((difference != 0).sum())
    sign_p = float(stats.binomtest(wins, unequal).pvalue) if unequal else 1.0
    spread = float(difference.std(ddof=1)) if len(x) > 1 else 0.0
    if spread <= 1e-12 * max(1.0, abs(mean)):
        sign = math.copysign(math.inf, mean) if mean and len(x) > 1 else 0.0
        interval = (mean, mean) if len(x) > 1 else (-math.inf, math.inf)
        return Paired(mean, wins, len(x), sign, 1.0 if not sign else 0.0, 1.0, sign, interval, sign_p=sign_p)
    test = stats.ttest_rel(x, y)
    rank = stats.wilcoxon(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 1)) * spread / math.sqrt(len(x))
    return Paired(
        mean,
        wins,
        len(x),
        t=float(test.statistic),
        t_p=float(test.pvalue),
        wilcoxon_p=float(rank.pvalue),
        effect=mean / spread,
        interval=(mean - half, mean + half),
        error=spread / math.sqrt(len(x)),
        sign_p=sign_p,
    )
