"""How unlike everyone's a device's data is, from counts or features alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.divergence import distribution, divergence
from fedwright.protocol.errors import ConfigError

Floats = NDArray[np.float64]


def heterogeneity(counts: Sequence[NDArray[Any]], *, smoothing: float = 0.1) -> Floats:
    """h_i = JSD(p_i || p_g) of each device against the pooled counts of all."""
    if len({len(own) for own in counts}) != 1:
        raise ConfigError("devices count different numbers of classes; give them data of one task")
    pooled = distribution(np.sum(np.stack(counts), axis=0), smoothing=smoothing)
    return np.array([divergence(distribution(own, smoothing=smoothing), pooled) for own in counts])


def distances(descriptors: Floats, samples: NDArray[Any]) -> Floats:
    """h_i = ||d_i - sum_j n_j d_j / N||: how far a device's mean features are from everyone's."""
    centre = np.average(descriptors, axis=0, weights=samples)
    far: Floats = np.linalg.norm(descriptors - centre, axis=1)
    return far
