"""What a device does so that a step hides single samples: it draws them by lot, and noise for their clipped sum."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.train.base import Array, Tensors
from fedwright.protocol.artifact import TensorSpec
from fedwright.protocol.crypto.noise import SecureBytes, SecureNoise
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.messages import Hidden, Hiding, Recipe
from fedwright.protocol.private_graph import CLIP, EXPECTED, TINY


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
        return _seed(self._bytes)


def _seed(source: SecureBytes) -> int:
    return int.from_bytes(source.take(4), "little") >> 1


class StepPrivacy:
    """The clip, the noise and the expected batch of a task's steps."""

    def __init__(self, hiding: Hiding, batch: int) -> None:
        self.scalars = {CLIP: hiding.clip, EXPECTED: float(batch)}
        self._scale = hiding.clip * hiding.noise_multiplier
        self._noise = SecureNoise()
        self._last: Tensors = {}

    def noise_for(self, spec: TensorSpec) -> Array:
        """Fresh noise for one parameter's sum."""
        noise: Array = np.empty(tuple(spec.shape), np.float32)
        self._noise.fill(noise, self._scale)
        return noise

    def step_noise(self, specs: Sequence[TensorSpec]) -> Tensors:
        """Fresh noise for every parameter's sum, in the place of that of the step before."""
        self._last = self._last or {spec.name: np.empty(tuple(spec.shape), np.float32) for spec in specs}
        for noise in self._last.values():
            self._noise.fill(noise, self._scale)
        return self._last


class ClippedSum:
    """Σ_b min(1, clip / ||∇_b||) ∇_b of gradients that come sample by sample; specs: of their noise, in their order."""

    def __init__(self, specs: Sequence[TensorSpec], privacy: StepPrivacy) -> None:
        self._specs, self._privacy = specs, privacy
        self._sums = [np.zeros(spec.shape, np.float64) for spec in specs]
        self._bytes = SecureBytes()

    def seed(self) -> int:
        """For one sample's run of a graph that drops entries at random, by itself. Below 2^31."""
        return _seed(self._bytes)

    def add(self, gradient: Sequence[Array]) -> None:
        """One sample's; one that is not finite counts for nothing, so that nobody hears of it."""
        norm = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in gradient))
        if math.isfinite(norm):
            if any(part.shape != total.shape for part, total in zip(gradient, self._sums, strict=True)):
                # Stretched over the sum, an entry would count more often than in the norm.
                raise BadArtifact("a gradient is not of the shape that the manifest says; build the artifact again")
            share = min(1.0, self._privacy.scalars[CLIP] / max(norm, TINY))
            for total, part in zip(self._sums, gradient, strict=True):
                total += share * part.astype(np.float64)

    def noisy(self) -> Tensors:
        """The sum with noise, by the names of the inputs for it."""
        pairs = zip(self._specs, self._sums, strict=True)
        return {spec.name: (total + self._privacy.noise_for(spec)).astype(np.float32) for spec, total in pairs}


def hidden_by(hiding: Hiding, recipe: Recipe, samples: int, steps: int) -> Hidden | None:
    """What so many steps have told; None when there were none."""
    if not samples or not steps:
        return None
    return Hidden(hiding.clip, hiding.noise_multiplier, min(1.0, recipe.batch / samples), steps)
