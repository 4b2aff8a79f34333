"""The data set of one device in memory, split into what it trains on and what it only measures with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.describe.descriptor import describe
from fedwright.device_runtime.describe.word_counts import word_counts
from fedwright.protocol.messages import DataSummary

Array = NDArray[np.generic]
Labels = NDArray[np.int64]
SCORED = 1000


@dataclass(frozen=True)
class LocalData:
    """x [samples, *input_shape] with labels y in 0 … classes-1, and a held-out part never trained on.

    extra: what else a batch has, one row per sample, by the name of the graph's input.
    """

    x: Array
    y: Labels
    x_holdout: Array
    y_holdout: Labels
    classes: int
    class_counts: tuple[int, ...]
    input_shape: tuple[int, ...]
    extra: Mapping[str, Array] = field(default_factory=dict)

    def summary(self, *, counts: bool = True) -> DataSummary:
        """What a report says about this data set."""
        return DataSummary(
            samples=len(self.y),
            holdout=len(self.y_holdout),
            input_shape=list(self.input_shape),
            classes=self.classes,
            class_counts=list(self.class_counts) if counts else None,
            score_counts=word_counts(self.class_counts) if counts and self.x.dtype.kind == "i" else None,
            pixel_std=self._pixel_std() if counts and len(self.input_shape) == 3 else None,
            descriptor=self.descriptor if counts else None,
        )

    @cached_property
    def descriptor(self) -> list[float]:
        """The mean of frozen random features, made once."""
        return describe(self.x)

    def _pixel_std(self) -> float:
        """Mean standard deviation of an image's pixels, from the first images: a score needs no more."""
        images = np.asarray(self.x[:SCORED], np.float32).reshape(min(len(self.x), SCORED), -1)
        return float(images.std(axis=1).mean()) if len(images) else 0.0


@dataclass(frozen=True)
class Raw:
    """What a reader found, unchecked; without a held-out part one is split off."""

    x: Array
    y: Array
    x_holdout: Array | None = None
    y_holdout: Array | None = None
    classes: int | None = None
