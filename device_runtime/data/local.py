"""The data set of one device in memory, split into what it trains on and what it only measures with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.describe.descriptor import describe, drawn_rows
from fedwright.device_runtime.describe.word_counts import word_counts
from fedwright.protocol.class_names import places_in
from fedwright.protocol.errors import DataError
from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.messages import DataSummary

Array = NDArray[np.generic]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class LocalData:
    """x [samples, *input_shape] with labels y in 0 … classes-1, and a held-out part never trained on.

    x is float32, or whole numbers of any type, which become what a graph takes when a batch is made.
    extra: what else a batch has, one row per sample, by the name of the graph's input.
    class_names: what the classes are called, in the order of their numbers; empty when they are numbers only.
    goal: what the labels are for; for numbers to predict, `classes` is how many there are.
    edges: of a graph [m, 2], between nodes numbered as in x, then as in x_holdout; None when samples stand alone.
    """

    x: Array
    y: Labels
    x_holdout: Array
    y_holdout: Labels
    classes: int
    class_counts: tuple[int, ...]
    input_shape: tuple[int, ...]
    extra: Mapping[str, Array] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    goal: str = CLASSIFY
    edges: Labels | None = None

    def summary(self, *, counts: bool = True) -> DataSummary:
        """What a report says about this data set."""
        whole = self.x.dtype.kind in "iu"
        if not self.input_shape:
            # Nothing but the classes is known of data that is not there.
            names = list(self.class_names) if self.class_names else None
            held = list(self.class_counts) if counts else None
            return DataSummary(0, 0, [], self.classes, class_counts=held, class_names=names, counted=False)
        return DataSummary(
            samples=len(self.y),
            holdout=len(self.y_holdout),
            input_shape=list(self.input_shape),
            classes=self.classes,
            class_counts=list(self.class_counts) if counts else None,
            score_counts=self._word_counts if counts else None,
            pixel_std=self._pixel_std() if counts and len(self.input_shape) == 3 else None,
            descriptor=self.descriptor if counts else None,
            class_names=list(self.class_names) if self.class_names else None,
            input_dtype=str(self.x.dtype),
            goal=self.goal,
            number_descriptor=self.number_descriptor if counts and whole else None,
        )

    def numbered_as(self, names: Sequence[str]) -> "LocalData":
        """The same data with its classes numbered by their places in `names`, the run's; plain numbers are places."""
        if not self.class_names or self.class_names == tuple(names):
            return self
        if not names:
            raise DataError(
                "this device's classes have names but the server did not say which classes the run has; "
                "update the server, or number the classes from 0"
            )
        place = np.array(places_in(names, self.class_names), np.int64)
        counts = np.zeros(len(names), np.int64)
        counts[place] = self.class_counts
        return replace(
            self,
            y=place[self.y],
            y_holdout=place[self.y_holdout],
            classes=len(names),
            class_counts=tuple(counts.tolist()),
            class_names=tuple(names),
        )

    @cached_property
    def descriptor(self) -> list[float]:
        """The mean of frozen random features, made once."""
        return describe(self.x)

    @cached_property
    def number_descriptor(self) -> list[float]:
        """The same of whole numbers that are measured and no word numbers."""
        return describe(self.x, words=False)

    @cached_property
    def _word_counts(self) -> list[int] | None:
        """How often each word is in the text, as far as the samples are word numbers; the server knows."""
        return word_counts(self.x)

    def _pixel_std(self) -> float:
        """Mean standard deviation of an image's pixels, over a thousand of them at most: a score needs no more."""
        rows = drawn_rows(len(self.x))
        images = np.asarray(self.x[rows], np.float32).reshape(len(rows), -1)
        return float(images.std(axis=1).mean()) if len(images) else 0.0


@dataclass(frozen=True)
class Raw:
    """What a reader found, unchecked; without a held-out part one is split off.

    edges: of a graph, between rows of x, each once. holdout: rows of x that are held out.
    """

    x: Array
    y: Array
    x_holdout: Array | None = None
    y_holdout: Array | None = None
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    edges: Labels | None = None
    holdout: Labels | None = None
