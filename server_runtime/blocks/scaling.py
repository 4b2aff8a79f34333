"""Descriptors of devices, put on one scale over the fleet."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Directions in which descriptors spread less than this part of the widest count less.
RIDGE = 0.1
# Divides away a coordinate in which all devices are alike; finite, as everything in a method's state is.
OF_NO_USE = 1e15


@dataclass(frozen=True)
class Scaling:
    """(v - mean) / std per coordinate over the fleet, then `turn` [l, l], which makes coordinates unlike each other.

    Means of random features differ along two or three directions mostly, which say little of what a device has; after
    scaling alone most hidden vectors would lie on one line. turn = V diag(1 / sqrt(s² + (RIDGE s_1)²)) V' from the
    singular values s and directions V of the scaled descriptors, so that directions count alike until they are noise.
    """

    mean: Array
    std: Array
    turn: Array

    @classmethod
    def of(cls, rows: Array) -> "Scaling":
        """Over descriptors [n, l]; a single device has nothing to be compared with and is left as it is."""
        mean, std, length = rows.mean(axis=0), rows.std(axis=0), rows.shape[1]
        if len(rows) == 1:
            return cls(np.zeros(length, np.float32), np.ones(length, np.float32), np.eye(length, dtype=np.float32))
        same = std <= 1e-6 * np.maximum(1.0, np.abs(mean))
        std = np.where(same, OF_NO_USE, std)
        _, values, directions = np.linalg.svd((rows - mean) / std, full_matrices=False)
        if not values[0] > 0:
            return cls(mean.astype(np.float32), std.astype(np.float32), np.eye(length, dtype=np.float32))
        factors = 1.0 / np.sqrt(values**2 + (RIDGE * values[0]) ** 2)
        # The mean square of a coordinate stays what scaling makes it: 1.
        factors *= math.sqrt(len(rows) * length / ((values * factors) ** 2).sum())
        turn = (directions.T * factors) @ directions
        return cls(mean.astype(np.float32), std.astype(np.float32), turn.astype(np.float32))

    def apply(self, row: Array) -> Array:
        """A standardised descriptor."""
        scaled: Array = (((row - self.mean) / self.std).astype(np.float32) @ self.turn).astype(np.float32)
        return scaled
