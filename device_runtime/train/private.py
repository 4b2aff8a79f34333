"""What a device does so that a step hides single samples: it draws them by lot, and noise for their clipped sum."""

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.train.base import Array
from fedwright.protocol.artifact import TensorSpec
from fedwright.protocol.crypto.noise import SecureBytes, SecureNoise
from fedwright.protocol.messages import Hidden, Hiding, Recipe
from fedwright.protocol.private_graph import CLIP, EXPECTED


class Lots:
    """Draws the samples of each step: each of them by itself, with the chance batch / samples (Poisson sampling)."""

    def __init__(self, samples: int, batch: int, seed: bytes | None = None) -> None:
        self._samples = samples
        self.ratio = min(1.0, batch / samples) if samples else 1.0
        self._bytes = SecureBytes(seed)

    def draw(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows of a step and what each counts for; nobody drawn: one row that counts for nothing."""
        raw: NDArray[np.uint64] = np.frombuffer(self._bytes.take(8 * self._samples), np.uint64)
        rows = np.flatnonzero((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self.ratio)
        if len(rows):
            return rows, np.ones(len(rows), np.float32)
        return np.zeros(1, np.int64), np.zeros(1, np.float32)

    def seed(self) -> int:
        """For a graph that drops entries at random: nobody else knows which. Below 2^31."""
        return int.from_bytes(self._bytes.take(4), "little") >> 1


class StepPrivacy:
    """The clip, the noise and the expected batch of a task's steps."""

    def __init__(self, hiding: Hiding, batch: int) -> None:
        self.scalars = {CLIP: hiding.clip, EXPECTED: float(batch)}
        self._scale = np.float32(hiding.clip * hiding.noise_multiplier)
        self._noise = SecureNoise()

    def noise_for(self, spec: TensorSpec) -> Array:
        """Fresh noise for one parameter's sum."""
        return self._noise.standard_normal(tuple(spec.shape)) * self._scale


def hidden_by(hiding: Hiding, recipe: Recipe, samples: int, steps: int) -> Hidden | None:
    """What so many steps have told; None when there were none."""
    if not samples or not steps:
        return None
    return Hidden(hiding.clip, hiding.noise_multiplier, min(1.0, recipe.batch / samples), steps)
