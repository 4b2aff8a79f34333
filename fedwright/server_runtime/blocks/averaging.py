"""Averages over devices that trained different parts of one model.

The streaming forms hold one model plus accumulators, however many devices there are, and cost each device time in
proportion to its own part.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axes, Index, Plan, grid, tensor_index

Array = NDArray[Any]
# A pass over this many entries at a time stays in a core's second-level cache.
CHUNK = 16_384


def selective_mean(current: Array, parts: Iterable[tuple[Array, Array, float]]) -> Array:
    """Average each entry over the devices that trained it; keep the rest.

    new[j] = sum_i w_i m_ij x_ij / sum_i w_i m_ij     where some m_ij = 1
    new[j] = current[j]                               elsewhere

    parts: (values, mask, weight) per device; values and mask have current's shape,
    mask is 1 where the device trained the entry.
    """
    total = np.zeros_like(current)
    weight = np.zeros_like(current)
    for values, mask, device_weight in parts:
        _check_weight(device_weight)
        total += device_weight * mask * values
        weight += device_weight * mask
    touched = weight > 0
    return np.where(touched, total / np.where(touched, weight, 1), current).astype(current.dtype)


class SelectiveMean:
    """`selective_mean` over submodels, one device at a time.

    Weights are counted in units of the first device's, so that one device alone gives back exactly its values.
    """

    def __init__(self, current: Mapping[str, Array], axes: Axes) -> None:
        """current: the whole model; integer tensors are not averaged, the largest is kept."""
        self._current = current
        self._axes = axes
        self._unit: float | None = None
        self._total: dict[str, Array] = {}
        # Weight so far per entry; an axis that nobody cut has length 1.
        self._weight: dict[str, Array] = {}

    def add(self, part: Mapping[str, Array], plan: Plan, weight: float) -> None:
        """Fold in the tensors that a device trained under this plan; it may lack some of the model's."""
        for name, values in part.items():
            self.add_at(name, values, tensor_index(self._current[name].shape, self._axes[name], plan), weight)

    def add_at(self, name: str, values: Array, index: tuple[Index | slice, ...], weight: float) -> None:
        """Fold in one tensor that a device trained at the outer product of an index."""
        _check_weight(weight)
        current = self._current[name]
        if not np.issubdtype(current.dtype, np.floating):
            self._add_integer(name, values, index)
            return
        self._unit = self._unit or weight
        if name not in self._total:
            self._total[name] = np.zeros(current.shape, current.dtype)
            self._weight[name] = np.zeros((1,) * current.ndim, current.dtype)
        where, coverage = self._covered(name, index)
        coverage[where] += weight / self._unit
        _accumulate(self._total[name], values, weight / self._unit, grid(current.shape, index))

    def result(self) -> dict[str, Array]:
        """The new model: averages where some device trained, the present values elsewhere."""
        return {name: self._finished(name, tensor) for name, tensor in self._current.items()}

    def _finished(self, name: str, current: Array) -> Array:
        if name not in self._total:
            return current.copy()
        if name not in self._weight:
            return self._total[name].copy()
        weight = self._weight[name]
        if weight.all():
            return np.asarray(self._total[name] / weight)
        mean = self._total[name] / np.where(weight > 0, weight, 1)
        return np.where(weight > 0, mean, current)

    def _covered(self, name: str, index: tuple[Index | slice, ...]) -> tuple[Any, Array]:
        """Where an index lies in the weights, after making those axes long that are now cut for the first time."""
        shape = self._current[name].shape
        weight = self._weight[name]
        cut = [not _is_whole(part, length) for part, length in zip(index, shape, strict=True)]
        long = tuple(
            length if is_cut or had > 1 else 1 for is_cut, length, had in zip(cut, shape, weight.shape, strict=True)
        )
        if weight.shape != long:
            weight = np.broadcast_to(weight, long).copy()
            self._weight[name] = weight
        picked = tuple(part if is_cut else slice(None) for part, is_cut in zip(index, cut, strict=True))
        return grid(weight.shape, picked), weight

    def _add_integer(self, name: str, values: Array, index: tuple[Index | slice, ...]) -> None:
        largest = self._total.setdefault(name, self._current[name].copy())
        where = grid(largest.shape, index)
        largest[where] = np.maximum(largest[where], values)


class DilutedMean:
    """Weighted mean of whole models in which a device's untrained entries keep the server's values.

    new = current + sum_i w_i m_i (x_i - current) / sum_i w_i     (HASA's protocol A)
    """

    def __init__(self, current: Mapping[str, Array], axes: Axes) -> None:
        self._current = current
        self._axes = axes
        self._moved = {name: np.zeros(tensor.shape, np.float64) for name, tensor in current.items()}
        self._weight = 0.0

    def add(self, part: Mapping[str, Array], plan: Plan, weight: float) -> None:
        """Fold in what a device trained under this plan."""
        _check_weight(weight)
        self._weight += weight
        for name, values in part.items():
            current = self._current[name]
            where = grid(current.shape, tensor_index(current.shape, self._axes[name], plan))
            self._moved[name][where] += weight * (values.astype(np.float64) - current[where])

    def result(self) -> dict[str, Array]:
        """The new model; the present one when no device answered."""
        total = self._weight or 1.0
        return {
            name: (tensor + self._moved[name] / total).astype(tensor.dtype) for name, tensor in self._current.items()
        }


def _accumulate(total: Array, values: Array, weight: float, where: tuple[Any, ...]) -> None:
    """total[where] += weight * values, a cache-sized piece at a time."""
    factor = total.dtype.type(weight)
    if not total.ndim or not all(isinstance(part, slice) for part in where):
        total[where] += factor * values
        return
    target = total[where]
    if weight == 1:
        target += values
        return
    if target.flags.c_contiguous and values.flags.c_contiguous:
        target, values = target.reshape(-1), values.reshape(-1)
    rows = max(1, CHUNK // max(1, target[0].size))
    scratch = np.empty((min(rows, len(target)), *target.shape[1:]), total.dtype)
    for start in range(0, len(target), rows):
        piece = slice(start, start + rows)
        step = scratch[: len(target[piece])]
        np.multiply(values[piece], factor, out=step)
        target[piece] += step


def _is_whole(part: Index | slice, length: int) -> bool:
    if isinstance(part, slice):
        return part == slice(None) or part.indices(length) == (0, length, 1)
    # Repeated entries are not allowed in an index, so as many as there are means all of them.
    return len(part) == length


def _check_weight(weight: float) -> None:
    if not weight > 0 or not np.isfinite(weight):
        raise ConfigError(f"weight {weight} cannot be averaged with; give a finite number above 0")
