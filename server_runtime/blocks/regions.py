"""Where a submodel lies in a whole tensor, as views that are made once and then added to device after device.

An index that is made of few runs of neighbours (prefixes, windows, gates, heads) becomes that many rectangular blocks,
each a view; anything else, such as a random draw, is added entry by entry.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.server_runtime.blocks.slicing import Index, grid

Array = NDArray[Any]
Indices = tuple[Index | slice, ...]
Slices = tuple[slice, ...]

# A pass over this many entries at a time stays in a core's second-level cache.
CHUNK = 16_384
# Below this many entries a block costs more to begin with than to add up.
LEAST_BLOCK = 256


class Region:
    """The part of one accumulator that an index means; `weight` counts what was added and not yet written down.

    `collect` makes it add up apart, end to end, until `settle`: several devices of one plan then cost what a
    contiguous sum costs, and only their sum is spread over the whole tensor.
    """

    def __init__(self, total: Array, index: Indices) -> None:
        self.index = index
        self.weight = 0.0
        self._total = total
        self._sum: Array | None = None
        self._apart: list[tuple[Array, Slices]] = []
        blocks = _blocks(index, total.shape)
        self.size = _size(index, total.shape)
        self._whole = blocks is not None and len(blocks) == 1 and _view(total, blocks[0][0]).flags.c_contiguous
        self._where = grid(total.shape, index) if blocks is None else ()
        self._pieces: list[tuple[Array, Slices]] = []
        for where, own in blocks or ():
            target = _view(total, where)
            self._pieces += _flat_pieces(target) if self._whole else _row_pieces(target, own)

    @property
    def collects(self) -> bool:
        """Whether it adds up end to end: apart, or where it lies."""
        return self._whole or self._sum is not None

    def collect(self) -> int:
        """Add up apart from now on; how many bytes that takes (none where the part lies end to end anyway)."""
        if self.collects:
            return 0
        self._sum = np.zeros(self.size, self._total.dtype)
        self._apart = _flat_pieces(self._sum)
        return self._sum.nbytes

    def add(self, values: Array, factor: float, scratch: Array) -> None:
        """total[index] += factor * values, a cache-sized piece at a time."""
        if self._sum is not None:
            _add_pieces(self._apart, values.reshape(-1), factor, scratch)
        else:
            self._add_spread(values, factor, scratch)

    def settle(self, scratch: Array) -> int:
        """Spread over the whole tensor what was added apart; how many bytes that sets free."""
        if self._sum is None:
            return 0
        shape = [_length(part, length) for part, length in zip(self.index, self._total.shape, strict=True)]
        self._add_spread(self._sum.reshape(shape), 1.0, scratch)
        freed, self._sum, self._apart = self._sum.nbytes, None, []
        return freed

    def _add_spread(self, values: Array, factor: float, scratch: Array) -> None:
        if self._where:
            self._total[self._where] += self._total.dtype.type(factor) * values
        else:
            _add_pieces(self._pieces, values.reshape(-1) if self._whole else values, factor, scratch)


def _add_pieces(pieces: list[tuple[Array, Slices]], values: Array, factor: float, scratch: Array) -> None:
    """Written for small tensors too: of many layers, most of the time would go into getting ready."""
    if factor == 1 or not pieces:
        for target, own in pieces:
            np.add(target, values[own], target)
        return
    dtype = pieces[0][0].dtype
    room, scale = scratch.view(dtype), dtype.type(factor)
    for target, own in pieces:
        step = room[: target.size]
        if target.ndim > 1:
            step = step.reshape(target.shape)
        np.multiply(values[own], scale, step)
        np.add(target, step, target)


def _view(total: Array, where: Slices) -> Array:
    """A view even of a single number, which plain indexing would copy."""
    key: tuple[Any, ...] = (*where, ...)
    view: Array = total[key]
    return view


def _size(index: Indices, shape: tuple[int, ...]) -> int:
    return math.prod(_length(part, length) for part, length in zip(index, shape, strict=True))


def _length(part: Index | slice, length: int) -> int:
    return len(range(*part.indices(length))) if isinstance(part, slice) else len(part)


def scratch_for(tensors: Mapping[str, Array]) -> Array:
    """Room for the largest piece of any of these tensors."""
    rows = [tensor[0].size for tensor in tensors.values() if tensor.ndim > 1 and len(tensor)]
    return np.empty(max([CHUNK, *rows]), np.float64)


def _flat_pieces(target: Array) -> list[tuple[Array, Slices]]:
    flat = target.reshape(-1)
    spans = [slice(start, start + CHUNK) for start in range(0, flat.size, CHUNK)]
    return [(flat[span], (span,)) for span in spans]


def _row_pieces(target: Array, own: Slices) -> list[tuple[Array, Slices]]:
    """Some rows at a time; axes behind the first are joined by numpy where they lie end to end."""
    rows = max(1, CHUNK // max(1, target[0].size))
    first = own[0].start
    return [
        (target[start : start + rows], (slice(first + start, min(first + start + rows, own[0].stop)), *own[1:]))
        for start in range(0, len(target), rows)
    ]


def _blocks(index: Indices, shape: tuple[int, ...]) -> list[tuple[Slices, Slices]] | None:
    """Pairs of where in the whole and where in the part; None when there are too many to be worth it."""
    count = math.prod(_count_runs(part) for part in index)
    if count > 1 and _size(index, shape) < count * LEAST_BLOCK:
        return None
    runs = [_runs(part, length) for part, length in zip(index, shape, strict=True)]
    return [
        (tuple(slice(*run) for run, _ in block), tuple(own for _, own in block))
        for block in product(*(list(zip(axis, _own(axis), strict=True)) for axis in runs))
    ]


def _count_runs(part: Index | slice) -> int:
    return 1 if isinstance(part, slice) else 1 + int(np.count_nonzero(part[1:] - part[:-1] != 1))


def _runs(part: Index | slice, length: int) -> list[tuple[int, int]]:
    """Neighbours of one axis as (first, behind the last)."""
    if isinstance(part, slice):
        start, stop, _ = part.indices(length)
        return [(start, stop)]
    ends = np.flatnonzero(np.diff(part) != 1)
    firsts, lasts = part[np.r_[0, ends + 1]], part[np.r_[ends, len(part) - 1]]
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def _own(runs: list[tuple[int, int]]) -> list[slice]:
    """Where each run lies in the part, one behind the other."""
    ends = np.cumsum([stop - start for start, stop in runs])
    return [slice(int(end) - (stop - start), int(end)) for (start, stop), end in zip(runs, ends, strict=True)]
