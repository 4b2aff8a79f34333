"""Inner products of updates with one another: all that robust rules need to know of how they lie."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.artifact import MEASURED

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Products:
    """Sums over the entries that two changes have both: of x_i x_j, of x_i², and how many there are."""

    products: Floats
    squares: Floats
    shared: Floats

    @classmethod
    def of(cls, updates: Sequence[Mapping[str, Array]]) -> "Products":
        """Of changes of one model, NaN where a device has no entry; what was measured is no part of them."""
        names = sorted({name for update in updates for name in update} - set(MEASURED))
        return cls.of_rows(len(updates), (_rows([update.get(name) for update in updates]) for name in names))

    @classmethod
    def of_rows(cls, size: int, tensors: Iterable[Array]) -> "Products":
        """Of `size` changes, given as one array [changes, entries] for each tensor."""
        products, squares, shared = (np.zeros((size, size)) for _ in range(3))
        for tensor in tensors:
            here = (~np.isnan(tensor)).astype(np.float64)
            rows = np.nan_to_num(tensor.astype(np.float64), nan=0.0)
            products += rows @ rows.T
            squares += np.square(rows) @ here.T
            shared += here @ here.T
        return cls(products, squares, shared)

    def only(self, kept: NDArray[np.bool_]) -> "Products":
        """Of some of the changes."""
        both = np.ix_(kept, kept)
        return Products(self.products[both], self.squares[both], self.shared[both])

    def distances(self) -> Floats:
        """||x_i - x_j||² per shared entry; those that share nothing are as far apart as can be."""
        total = np.maximum(self.squares + self.squares.T - 2 * self.products, 0.0)
        return np.where(self.shared > 0, total / np.maximum(self.shared, 1), np.inf)

    def cosines(self, shares: Floats) -> Floats:
        """<x_i, x_j> / (||x_i|| ||x_j||) over shared entries, of mixed updates; 0 where there are none."""
        tiny = np.finfo(np.float64).tiny
        norms = np.sqrt(np.maximum(self.squares * self.squares.T, tiny))
        if np.array_equal(shares, np.eye(len(shares))):
            return np.asarray(self.products / norms)
        across = shares @ self.products @ shares.T
        own = np.sqrt(np.maximum(np.diag(across), tiny))
        return np.asarray(across / (own[:, None] * own[None, :]))


def _rows(values: Sequence[Array | None]) -> Floats:
    """One row for each, NaN for one that lacks the tensor."""
    size = next(value.size for value in values if value is not None)
    return np.stack([np.full(size, np.nan) if value is None else value.reshape(-1) for value in values]).astype(
        np.float64
    )
