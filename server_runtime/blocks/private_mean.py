"""A mean of changes in which no device counts for more than `clip`, with Gaussian noise on the sum: central privacy.

McMahan et al., Learning Differentially Private Recurrent Language Models (2018); the moving clip is that of Andrew et
al., Differentially Private Learning with Adaptive Clipping (2021).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.crypto.noise import SecureNoise
from fedwright.server_runtime.blocks.averaging import SelectiveMean
from fedwright.server_runtime.blocks.slicing import Axes, Plan

Array = NDArray[Any]
# The least noise on the count of short changes, as a share of the devices of a round (Andrew et al., Sec. 3.1).
COUNT_NOISE_RATIO = 1 / 20


@dataclass
class CentralNoise:
    """What becomes of the changes of a round: x_i ← x_i min(1, clip / ||x_i||), (Σ x_i + N(0, z² clip²)) / expected.

    multiplier: z, of the round as a whole. expected: devices of a round, which is fixed before anybody answers, so that
    the sensitivity of the mean is clip / expected. quantile: share of changes that shall be shorter than the clip,
    which then moves from round to round; None leaves it where it is. rate: how fast it moves.
    """

    clip: float
    multiplier: float
    expected: float
    quantile: float | None = None
    rate: float = 0.2
    noise: SecureNoise = field(default_factory=SecureNoise)
    # Of the last mean that was made: what the clip becomes if it counts.
    following: float | None = None

    @property
    def sum_multiplier(self) -> float:
        """z of the sum alone: together with the noise on the count the round has `multiplier`."""
        if self.quantile is None:
            return self.multiplier
        # Whether a change is short is told as ±1/2, so that one device moves the count by at most 1/2.
        return float((self.multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise on the count; in a small round it must not eat up what the sum has."""
        return max(COUNT_NOISE_RATIO * self.expected, self.multiplier)

    def clipped(self, part: Mapping[str, Array]) -> tuple[dict[str, Array], bool]:
        """A change no longer than the clip, and whether it was no longer before."""
        norm = math.sqrt(sum(float(np.vdot(x, x)) for x in part.values()))
        if norm <= self.clip:
            return dict(part), True
        return {name: x * np.float32(self.clip / norm) for name, x in part.items()}, False

    def move_clip(self, short: int, heard: int) -> None:
        """clip ← clip exp(-rate (share of short changes - quantile)), where the share is told with noise."""
        if self.quantile is None:
            return
        told = short - heard / 2 + self.count_noise * float(self.noise.standard_normal((1,))[0])
        share = told / self.expected + 0.5
        self.following = self.clip * math.exp(-self.rate * (share - self.quantile))

    def settle(self) -> float:
        """Take the clip of the next round and return it; call it once, when a round is closed for good."""
        if self.following is not None:
            self.clip, self.following = self.following, None
        return self.clip

    def on_sum(self, total: Array) -> Array:
        """(Σ x_i + noise) / expected."""
        noise = np.empty(total.shape, np.float32)
        self.noise.fill(noise, self.sum_multiplier * self.clip)
        return np.asarray((total + noise) / np.float32(self.expected), total.dtype)


class PrivateMean(SelectiveMean):
    """The selective mean's interface; every device counts the same and whole numbers stay as they are.

    Entries that few devices hold are divided by `expected` too: how many hold them is not told.
    """

    def __init__(self, current: Mapping[str, Array], axes: Axes, central: CentralNoise) -> None:
        super().__init__(current, axes)
        self._central = central
        self._short = self._heard = 0

    def add(self, part: Mapping[str, Array], plan: Plan, weight: float) -> None:
        """Fold in a device's change, clipped; its weight is not used."""
        del weight
        clipped, short = self._central.clipped({name: x for name, x in part.items() if name in self._averaged})
        self._short += short
        self._heard += 1
        super().add(clipped, plan, 1.0)

    def result(self) -> dict[str, Array]:
        """The new model; another call draws other noise, and only one result may be let out."""
        self._central.move_clip(self._short, self._heard)
        return super().result()

    def _finished(self, name: str, current: Array) -> Array:
        if name not in self._total:
            return current.copy()
        return np.asarray(current + self._central.on_sum(self._total[name]))
