"""How unlike two sets of counts are; the same figure whether the server computes it or a device."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError

Floats = NDArray[np.float64]


def distribution(counts: NDArray[Any], *, smoothing: float = 0.1) -> Floats:
    """p(v) = (c_v + a) / sum_u (c_u + a)."""
    if counts.ndim != 1 or not len(counts) or (counts < 0).any():
        raise ConfigError("counts must be one non-negative number per class; a device sent something else")
    total = counts.sum() + smoothing * len(counts)
    if not total > 0:
        raise ConfigError("a device has no counted sample and smoothing is 0; give it data or smooth the counts")
    shares: Floats = (counts + smoothing) / total
    return shares


def divergence(p: Floats, q: Floats) -> float:
    """JSD(p || q) = (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2, in nats: 0 to log 2."""
    m = (p + q) / 2
    return float((_kl(p, m) + _kl(q, m)) / 2)


def _kl(p: Floats, m: Floats) -> float:
    inside = p > 0
    return float(np.sum(p[inside] * np.log(p[inside] / m[inside])))
