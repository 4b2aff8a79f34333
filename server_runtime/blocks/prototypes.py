"""Class prototypes: the mean embedding of each class, over the devices that hold it."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import BadUpdate

Array = NDArray[Any]


@dataclass
class Prototypes:
    """values [classes, width] and whether each class has one.

    P_c ← mean over the devices n that reported class c of P_c^n, weighted by their samples of c if asked;
    a class that nobody reported keeps its prototype.
    """

    values: Array
    known: Array
    by_count: bool = False
    _total: Array = field(init=False)
    _weight: Array = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing reported."""
        self._begin()

    @classmethod
    def empty(cls, classes: int, width: int, *, by_count: bool = False) -> "Prototypes":
        """No class has one yet."""
        return cls(np.zeros((classes, width), np.float32), np.zeros(classes, np.float32), by_count)

    def add(self, prototypes: Array, counts: Array, *, columns: Array | None = None) -> None:
        """One device's class means [classes, width] and samples per class; columns: where its width lies in ours."""
        weight = (counts if self.by_count else counts > 0).astype(np.float64)[:, None]
        where = slice(None) if columns is None else columns
        self._total[:, where] += weight * prototypes
        self._weight[:, where] += weight

    def advance(self) -> float:
        """Take in what was reported; returns how far prototypes moved (root mean square over those known before)."""
        reported = self._weight > 0
        mean = np.where(reported, self._total / np.where(reported, self._weight, 1.0), self.values)
        old = (self.known > 0)[:, None] & reported
        moved = float(np.sqrt(np.mean((mean - self.values)[old] ** 2))) if old.any() else 0.0
        self.values = mean.astype(np.float32)
        self.known = np.maximum(self.known, reported.any(axis=1)).astype(np.float32)
        self._begin()
        return moved

    def _begin(self) -> None:
        self._total = np.zeros(self.values.shape)
        self._weight = np.zeros(self.values.shape)


def check_owned(prototypes: Array, counts: Array) -> None:
    """Raise BadUpdate when a prototype comes for a class that the device does not own."""
    if (counts < 0).any() or ((counts <= 0)[:, None] & (prototypes != 0)).any():
        raise BadUpdate("a prototype came for a class of which the device has no sample; the device counts wrongly")


def disturbed(
    prototypes: Array, kind: Literal["none", "noise", "rotation"], *, scale: float, rng: np.random.Generator
) -> Array:
    """What is shared instead of the prototypes themselves.

    noise: P + ε, ε ~ N(0, (scale ||P||)² I). rotation: Q P with a random orthogonal Q.
    """
    if kind == "none":
        return prototypes
    if kind == "noise":
        norms = np.linalg.norm(prototypes, axis=1, keepdims=True)
        return np.asarray(prototypes + scale * norms * rng.standard_normal(prototypes.shape), np.float32)
    q, r = np.linalg.qr(rng.standard_normal((prototypes.shape[1],) * 2))
    # Signs of the diagonal make the rotation uniform.
    return np.asarray(prototypes @ (q * np.sign(np.diag(r))).T, np.float32)
