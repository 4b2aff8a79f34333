"""How unlike everyone's a device's data is, from counts alone; and sums of counts that hide their parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
# Additions modulo 2^64, so that a mask hides a count completely.
Masked = NDArray[np.uint64]


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


def masked(device: str, counts: Counts, seeds: Mapping[str, int]) -> Masked:
    """A device's counts under pairwise masks: the server learns their sum over all devices and nothing else.

    seeds: for every other device, the secret that the two share. Of each pair the smaller id adds the mask and the
    larger one subtracts it, modulo 2^64.
    """
    hidden: Masked = counts.astype(np.uint64)
    for other, seed in sorted(seeds.items()):
        if other == device:
            raise ConfigError(f"device {device} has a secret with itself; give secrets with other devices only")
        mask = np.random.default_rng(seed).integers(0, 2**64, len(counts), np.uint64, endpoint=False)
        hidden = hidden + mask if device < other else hidden - mask
    return hidden


def unmask_sum(parts: Sequence[Masked]) -> Counts:
    """The pooled counts: the masks of all pairs cancel."""
    total: Masked = np.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total.astype(np.int64)
