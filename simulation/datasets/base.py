"""A data set in memory, and what is known of one before it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import DataError

Array = NDArray[np.generic]
Kind = Literal["image", "series", "tokens", "graph"]


@dataclass(frozen=True)
class DataSet:
    """Training and test examples.

    x: float32 [n, ...] (int64 word ids for text); y: int64 [n], classes 0 to len(classes) - 1.
    owner_train, owner_test: int64 [n], the index into `owners` of who made each example (person, publication).
    extra: what only one data set has, such as a graph's edges.
    """

    name: str
    kind: Kind
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: tuple[str, ...]
    owners: tuple[str, ...] = ()
    owner_train: Array | None = None
    owner_test: Array | None = None
    extra: Mapping[str, Array] = field(default_factory=dict)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x_train.shape[1:])


@dataclass(frozen=True)
class Limit:
    """How many examples to load at most, from the start; None loads all."""

    train: int | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        if any(count is not None and count < 1 for count in (self.train, self.test)):
            raise DataError(f"cannot load {self.train} training and {self.test} test examples; ask for at least 1")


@dataclass(frozen=True)
class DataSetInfo:
    """One line of `fedwright datasets`.

    place: where its files are now; None when they would have to be downloaded or put there first.
    """

    name: str
    summary: str
    kind: Kind
    place: str | None
    downloadable: bool
