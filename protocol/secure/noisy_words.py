"""Whole numbers of a change with a share of noise, so that a sum hides each of its members from whoever opens it.

Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism (2021), without its rotation: numbers modulo 2^32
have room for every entry.

    q = SR(s Δ min(1, clip / ||Δ||)), drawn again while ||q|| > T;     y = q + N_Z(0, σ²);     h σ² >= (z T)²

SR rounds up or down by chance, unbiased. z: the noise multiplier of the sum. h: how many shares are counted on: of n
members more than two thirds stay, and fewer than a third of n tell the server their share.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.crypto.discrete_gaussian import MOST_VARIANCE, DiscreteGaussian
from fedwright.protocol.crypto.noise import KEY_BYTES, SecureBytes
from fedwright.protocol.errors import ConfigError, DeviceError
from fedwright.protocol.secure.graph import quorum
from fedwright.protocol.secure.masks import MOST_SUM, PIECE, Words

# Each draw is short enough with a chance of 0.39 or more (Kairouz et al., Prop. 26, with β = e^-1/2).
MOST_DRAWS = 256
# Of the room of a sum changes take a quarter at most; noise takes the rest.
ROOM = MOST_SUM // 4


def counted_on(members: int) -> int:
    """h: members that stay in a sum and keep their share of noise to themselves, at least."""
    return quorum(members) - (members - 1) // 3


@dataclass(frozen=True)
class NoisyScale:
    """scale: s. bound: T, the longest row of whole numbers. variance: σ² of each member's share."""

    scale: float
    bound: float
    variance: int


def noisy_scale(members: int, entries: int, *, clip: float, multiplier: float) -> NoisyScale:
    """The finest numbers for which noise can be drawn exactly; ConfigError when none are fine enough."""
    counted = counted_on(members)
    # Above the variance there is room for rounding it up.
    bound = min(math.sqrt(counted * (MOST_VARIANCE - 1)) / multiplier, ROOM / members)
    rest = bound**2 - entries / 4 - math.sqrt(entries) / 2
    # T² = c² + c + d / 4 + sqrt(d) / 2 with c = s clip (Kairouz et al., Prop. 26).
    longest = (math.sqrt(1 + 4 * max(0.0, rest)) - 1) / 2
    if longest < 1:
        raise ConfigError(
            f"noise of {multiplier:g} times the clip on {entries} entries leaves nothing of a change in a sum of "
            f"{members} devices; set privacy.noise_multiplier lower, or train fewer parameters"
        )
    variance = math.ceil((multiplier * bound) ** 2 / counted)
    return NoisyScale(longest / clip, bound, max(1, variance))


def noisy_words(change: NDArray[np.float32], scale: NoisyScale, *, clip: float, seed: bytes) -> Words:
    """A change with its share of noise; the same for the same seed, which is of this sum and this device alone.

    One that is no finite row goes in as nothing, so that the sum does not tell of it.
    """
    norm = _norm(change)
    factor = scale.scale * min(1.0, clip / norm) if 0 < norm < math.inf else 0.0
    chances = SecureBytes(seed)
    noise = DiscreteGaussian(scale.variance, chances.take(KEY_BYTES))
    whole = _rounded(change, factor, scale.bound, chances) if factor else np.zeros(len(change), np.int32)
    for piece in _pieces(whole):
        piece += noise.draw(len(piece)).astype(np.int32)
    return whole.view(np.uint32)


def _rounded(change: NDArray[np.float32], factor: float, bound: float, chances: SecureBytes) -> NDArray[np.int32]:
    found = np.empty(len(change), np.int32)
    for _ in range(MOST_DRAWS):
        for given, made in zip(_pieces(change), _pieces(found), strict=True):
            chance = np.frombuffer(chances.take(4 * len(given)), np.uint32) * 2.0**-32
            made[:] = np.floor(given.astype(np.float64) * factor + chance)
        if _norm(found) <= bound:
            return found
    raise DeviceError("no draw of whole numbers is as short as a private change must be; this is a mistake here")


def _norm(row: NDArray[Any]) -> float:
    return math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in _pieces(row)))


def _pieces(row: NDArray[Any]) -> list[NDArray[Any]]:
    return [row[start : start + PIECE] for start in range(0, len(row), PIECE)]
