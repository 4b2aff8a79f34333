"""Less is given away: Gaussian noise on what a device tells about its data, drawn once and then always the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedwright.protocol.class_names import places_in
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary

SECRET_BYTES = 16


def with_noise(summary: DataSummary, ratio: float, rng: "np.random.Generator") -> DataSummary:
    """The summary with noise of `ratio` times the mean entry on counts, the descriptor and the spread of pixels.

    A device must tell the same numbers every time, because the mean of many draws would give the truth away.
    """
    if ratio < 0:
        raise ConfigError(f"the noise on what is told is {ratio} but must be 0 or more")
    if ratio == 0:
        return summary
    descriptor = _noisy(summary.descriptor, ratio, rng)
    class_counts = _counts(summary.class_counts, ratio, rng)
    score_counts = _counts(summary.score_counts, ratio, rng)
    # Drawn last: what earlier agents told of the rest stays the same.
    pixel_std = summary.pixel_std
    if pixel_std is not None:
        pixel_std = max(0.0, pixel_std + float(rng.normal(0.0, ratio * pixel_std)))
    return structs.replace(
        summary,
        class_counts=class_counts,
        score_counts=score_counts,
        pixel_std=pixel_std,
        descriptor=descriptor,
        number_descriptor=_noisy(summary.number_descriptor, ratio, rng),
    )


@dataclass(frozen=True)
class ClassMeanNoise:
    """Noise on class means, before they leave: of `ratio` times their mean entry, and the counts that are told.

    A class that is told of but not there is noise alone; one that is there but not told of is left out, so that
    means say no more about classes than the counts that were told. The draw is the same every time.
    class_names: those of the counts, where the classes have any.
    """

    ratio: float
    secret: bytes
    told: Sequence[int]
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ConfigError(
                f"a noise secret has {len(self.secret)} bytes but must have {SECRET_BYTES}; noise from fewer is known"
            )

    def __call__(
        self, means: NDArray[Any], counts: NDArray[Any], run_names: Sequence[str] = ()
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """What is sent instead of means [classes, dim] and counts [classes], which are in the run's order."""
        rng = np.random.default_rng([*self.secret, len(means)])
        scale = self.ratio * _scale(means[counts > 0].reshape(-1).astype(float))
        noisy = means + scale * rng.standard_normal(means.shape)
        told = np.zeros(len(counts), np.int64)
        if self.class_names:
            told[places_in(run_names, self.class_names)] = self.told
        else:
            told[: len(self.told)] = self.told[: len(counts)]
        return np.where(told[:, None] > 0, noisy, 0.0).astype(np.float32), told


def _noisy(descriptor: Sequence[float] | None, ratio: float, rng: "np.random.Generator") -> list[float] | None:
    if descriptor is None:
        return None
    values = np.asarray(descriptor)
    return [float(value) for value in values + rng.normal(0.0, ratio * _scale(values), len(values))]


def _counts(counts: Sequence[int] | None, ratio: float, rng: "np.random.Generator") -> list[int] | None:
    if counts is None:
        return None
    values = np.asarray(counts, float)
    noisy = values + rng.normal(0.0, ratio * _scale(values), len(values))
    return [int(value) for value in np.maximum(0, np.rint(noisy))]


def _scale(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float:
    return float(np.mean(np.abs(values))) if len(values) else 0.0
