"""Averages over devices that trained different parts of one model.

The streaming forms hold one model plus accumulators, however many devices there are, and cost each device time in
proportion to its own part.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.regions import Region, scratch_for
from fedwright.server_runtime.blocks.slicing import Axes, Index, Plan, grid, tensor_index

Array = NDArray[Any]
# Plans whose views are kept: as many as a fleet has different widths.
KEPT_PLANS = 16


class SelectiveMean:
    """Each entry averaged over the devices that trained it, the rest kept; one device at a time.

    new[j] = sum_i w_i m_ij x_ij / sum_i w_i m_ij     where some m_ij = 1 (device i trained entry j)
    new[j] = current[j]                               elsewhere

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
        # Views for the plans of late, by the plan's id; the plan is kept, so that its id is not another one's.
        self._regions: OrderedDict[int, tuple[Plan, dict[str, Region]]] = OrderedDict()
        self._scratch = scratch_for(current)
        self._averaged = {name for name, value in current.items() if np.issubdtype(value.dtype, np.floating)}
        # Bytes that sums apart may still take: together no more than one model.
        self._room = sum(tensor.nbytes for tensor in current.values())

    def add(self, part: Mapping[str, Array], plan: Plan, weight: float) -> None:
        """Fold in the tensors that a device trained under this plan; it may lack some of the model's."""
        _check_weight(weight)
        self._unit = self._unit or weight
        factor = weight / self._unit
        regions = self._regions_of(plan)
        for name, values in part.items():
            if name not in self._averaged:
                self._add_integer(name, values, plan)
                continue
            region = regions.get(name)
            if region is None:
                region = regions[name] = self._region(name, plan)
            elif not region.collects and region.size * values.itemsize <= self._room:
                self._room -= region.collect()
            region.add(values, factor, self._scratch)
            region.weight += factor

    def result(self) -> dict[str, Array]:
        """The new model: averages where some device trained, the present values elsewhere."""
        self._settle_all()
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

    def _regions_of(self, plan: Plan) -> dict[str, Region]:
        """The plan's views, made at its first device; few plans are kept, because every device may have its own."""
        key = id(plan)
        if key not in self._regions:
            self._regions[key] = (plan, {})
            if len(self._regions) > KEPT_PLANS:
                self._settle(self._regions.popitem(last=False)[1][1])
        self._regions.move_to_end(key)
        return self._regions[key][1]

    def _region(self, name: str, plan: Plan) -> Region:
        current = self._current[name]
        if name not in self._total:
            self._total[name] = np.zeros(current.shape, current.dtype)
            self._weight[name] = np.zeros((1,) * current.ndim, current.dtype)
        return Region(self._total[name], tensor_index(current.shape, self._axes[name], plan))

    def _settle_all(self) -> None:
        for _, regions in self._regions.values():
            self._settle(regions)

    def _settle(self, regions: Mapping[str, Region]) -> None:
        """Write down the weights of what was added to these views, and what was added up apart."""
        for name, region in regions.items():
            self._room += region.settle(self._scratch)
            where, coverage = self._covered(name, region.index)
            coverage[where] += region.weight
            region.weight = 0.0

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

    def _add_integer(self, name: str, values: Array, plan: Plan) -> None:
        largest = self._total.setdefault(name, self._current[name].copy())
        where = grid(largest.shape, tensor_index(largest.shape, self._axes[name], plan))
        largest[where] = np.maximum(largest[where], values)


class DilutedMean(SelectiveMean):
    """Weighted mean of whole models in which a device's untrained entries keep the server's values.

    new = current + sum_i w_i m_i (x_i - current) / sum_i w_i     (HASA's protocol A)
    """

    def __init__(self, current: Mapping[str, Array], axes: Axes) -> None:
        super().__init__(current, axes)
        self._all = 0.0

    def add(self, part: Mapping[str, Array], plan: Plan, weight: float) -> None:
        """Fold in what a device trained under this plan."""
        super().add(part, plan, weight)
        self._all += weight

    def _finished(self, name: str, current: Array) -> Array:
        """current + (sum_i w_i m_i x_i - current sum_i w_i m_i) / sum_i w_i, in units of the first device's weight."""
        if name not in self._weight or self._unit is None:
            return super()._finished(name, current)
        share = self._weight[name] / current.dtype.type(self._all / self._unit)
        mean = self._total[name] / current.dtype.type(self._all / self._unit)
        return np.asarray(mean + (1 - share) * current)


def _is_whole(part: Index | slice, length: int) -> bool:
    if isinstance(part, slice):
        return part == slice(None) or part.indices(length) == (0, length, 1)
    # Repeated entries are not allowed in an index, so as many as there are means all of them.
    return len(part) == length


def _check_weight(weight: float) -> None:
    if not weight > 0 or not np.isfinite(weight):
        raise ConfigError(f"weight {weight} cannot be averaged with; give a finite number above 0")
