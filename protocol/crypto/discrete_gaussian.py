"""Whole numbers of the discrete Gaussian, drawn exactly: P[x] is proportional to exp(-x² / (2 σ²)).

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (2020), Algorithms 1 to 3, over many numbers
at a time. Only whole numbers are compared, so that nothing is rounded: σ² is one, and no product passes 2^63.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.crypto.noise import SecureBytes
from fedwright.protocol.errors import ConfigError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# (|Y| t - σ²)² and 2 σ² t² k stay below 2^63 for what is drawn within 2^31 / t, which nothing beyond 60 σ is.
MOST_VARIANCE = 2**22
MOST_SCALE = 2**30


class DiscreteLaplace:
    """Numbers with P[x] proportional to exp(-|x| / scale); `seed` makes the stream one that a test knows."""

    def __init__(self, scale: int, seed: bytes | None = None) -> None:
        if not 1 <= scale <= MOST_SCALE:
            raise ConfigError(f"discrete noise has the scale {scale} but it must be from 1 to {MOST_SCALE}")
        self._scale = scale
        self._bytes = SecureBytes(seed)

    def draw(self, count: int) -> Ints:
        """So many independent numbers."""

        def attempt(size: int) -> tuple[Ints, Bools]:
            low = self._below(np.full(size, self._scale, np.int64))
            found = low + self._scale * self._successes(size)
            negative = self._below(np.full(size, 2, np.int64)) == 1
            kept = self.chance_exp(low, self._scale) & ~(negative & (found == 0))
            return np.where(negative, -found, found), kept

        return _until(attempt, count)

    def _successes(self, size: int) -> Ints:
        """How often in a row a chance of 1/e comes true."""
        counts, running = np.zeros(size, np.int64), np.arange(size)
        while len(running):
            running = running[self.chance_exp(np.ones(len(running), np.int64), 1)]
            counts[running] += 1
        return counts

    def chance_exp(self, numerator: Ints, denominator: int) -> Bools:
        """True with the chance exp(-numerator / denominator)."""
        whole, rest = np.divmod(numerator, denominator)
        # exp(-whole): so many chances of 1/e must all come true.
        alive = np.flatnonzero(np.ones(len(whole), bool))
        left = whole.copy()
        while (pending := alive[left[alive] > 0]).size:
            lost = pending[~self._chance_exp_small(np.ones(len(pending), np.int64), 1)]
            left[pending] -= 1
            alive = np.setdiff1d(alive, lost, assume_unique=True)
        found = np.zeros(len(whole), bool)
        found[alive] = self._chance_exp_small(rest[alive], denominator)
        return found

    def _chance_exp_small(self, numerator: Ints, denominator: int) -> Bools:
        """The same for a fraction of at most 1: the run of chances fraction / k ends at an odd k."""
        odd, running, k = np.ones(len(numerator), bool), np.arange(len(numerator)), 1
        while len(running):
            true = self._below(np.full(len(running), denominator * k, np.int64)) < numerator[running]
            odd[running[~true]] = k % 2 == 1
            running, k = running[true], k + 1
        return odd

    def _below(self, limits: Ints) -> Ints:
        """Uniform whole numbers from 0 to each limit, without it; what would be uneven is drawn again."""
        found, open_ = np.empty(len(limits), np.int64), np.arange(len(limits))
        while len(open_):
            raw: NDArray[Any] = np.frombuffer(self._bytes.take(8 * len(open_)), np.int64) & np.int64(2**63 - 1)
            limit = limits[open_]
            fits = raw < (2**63 - 1) // limit * limit
            found[open_[fits]] = raw[fits] % limit[fits]
            open_ = open_[~fits]
        return found


class DiscreteGaussian:
    """Numbers of variance parameter σ² = `variance`; `seed` makes the stream one that a test knows."""

    def __init__(self, variance: int, seed: bytes | None = None) -> None:
        if not 1 <= variance <= MOST_VARIANCE:
            raise ConfigError(f"discrete noise has the variance {variance} but it must be from 1 to {MOST_VARIANCE}")
        self._variance = variance
        self._scale = int(variance**0.5) + 1
        self._laplace = DiscreteLaplace(self._scale, seed)

    def draw(self, count: int) -> Ints:
        """So many independent numbers."""
        variance, scale = self._variance, self._scale

        def attempt(size: int) -> tuple[Ints, Bools]:
            laplace = self._laplace.draw(size)
            away = np.abs(laplace) * scale - variance
            return laplace, self._laplace.chance_exp(away * away, 2 * variance * scale * scale)

        return _until(attempt, count)


def _until(attempt: Callable[[int], tuple[Ints, Bools]], count: int) -> Ints:
    """Draws that were kept, in order, until there are enough."""
    parts: list[Ints] = []
    have = 0
    while have < count:
        drawn, kept = attempt(count - have + 16)
        parts.append(drawn[kept])
        have += int(kept.sum())
    return np.concatenate([*parts, np.zeros(0, np.int64)])[:count]
