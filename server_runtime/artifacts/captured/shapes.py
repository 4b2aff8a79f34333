"""Shapes, parts, places and constants."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedwright.server_runtime.artifacts.captured.writer import (
    Writer,
    Written,
    axes_of,
    fixed,
    form,
    known,
    rank,
)
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured

_END = torch.iinfo(torch.int64).max
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


@form("view", "reshape", "unflatten", "_unsafe_view", "view_as", "reshape_as")
def _reshape(g: Writer, x: Written, *shape: Any) -> Any:
    """The same entries in the shape of the result."""
    parts = shape[-1] if shape and isinstance(shape[-1], list) else []
    if known(g.result).count(None) > 1 and (len(parts) != rank(g.result) or -1 in parts):
        raise Uncaptured("a shape with several free sizes has no form")
    return g.op("Reshape", x, g.shape_of(g.result, parts))


@form("flatten")
def _flatten(g: Writer, x: Written, start: int, end: int) -> Any:
    """Some axes as one."""
    first, last = axes_of(x, [start, end])
    sizes = known(x)
    if known(g.result).count(None) <= 1:
        return g.op("Reshape", x, g.shape_of(g.result, []))
    parts = [
        0 if at < first else -1 if at == first else size for at, size in enumerate(sizes) if not first < at <= last
    ]
    if None in parts:
        raise Uncaptured("a shape with several free sizes has no form")
    return g.op("Reshape", x, g.ints(*(part for part in parts if part is not None)))


@form("squeeze")
def _squeeze(g: Writer, x: Written, dims: Any = None) -> Any:
    """Without axes of one entry."""
    axes = [axis for axis in axes_of(x, dims) if known(x)[axis] == 1]
    return g.op("Squeeze", x, g.ints(*axes)) if axes else x


@form("unsqueeze")
def _unsqueeze(g: Writer, x: Written, dim: int) -> Any:
    """With one axis more."""
    return g.op("Unsqueeze", x, g.ints(dim % (rank(x) + 1)))


@form("transpose", "swapaxes", "swapdims")
def _transpose(g: Writer, x: Written, first: int, second: int) -> Any:
    """Two axes changed."""
    order = list(range(rank(x)))
    if not order:
        return x
    a, b = axes_of(x, [first, second])
    order[a], order[b] = order[b], order[a]
    return g.op("Transpose", x, perm_i=order)


@form("t", "numpy_T", "mT")
def _turned(g: Writer, x: Written) -> Any:
    """The last two axes changed."""
    return _transpose(g, x, -2, -1) if rank(x) > 1 else x


@form("permute")
def _permute(g: Writer, x: Written, dims: Sequence[int]) -> Any:
    """Axes in another order."""
    return g.op("Transpose", x, perm_i=axes_of(x, list(dims)))


@form("movedim", "moveaxis")
def _movedim(g: Writer, x: Written, source: Any, target: Any) -> Any:
    """Axes put at other places."""
    olds, news = axes_of(x, source), axes_of(x, target)
    order = [axis for axis in range(rank(x)) if axis not in olds]
    for new, old in sorted(zip(news, olds, strict=True)):
        order.insert(new, old)
    return g.op("Transpose", x, perm_i=order)


@form("expand", "expand_as", "broadcast_to")
def _expand(g: Writer, x: Written, size: Any, *_: Any) -> Any:
    """Repeated along axes of one entry."""
    if isinstance(size, Written):
        return g.op("Expand", x, g.op("Shape", size))
    return g.op("Expand", x, g.vector([1 if isinstance(part, int) and part == -1 else part for part in size]))


@form("repeat")
def _repeat(g: Writer, x: Written, times: Any) -> Any:
    """The whole so many times."""
    more = len(times) - rank(x)
    if more:
        x = g.op("Unsqueeze", x, g.ints(*range(more)))
    return g.op("Tile", x, g.vector(times))


@form("cat", "concat", "concatenate")
def _cat(g: Writer, parts: Any, dim: int = 0) -> Any:
    """One after the other."""
    kept = [g.cast(part, g.result.dtype) for part in parts if known(part) != (0,)]
    return kept[0] if len(kept) == 1 else g.op("Concat", *kept, axis_i=axes_of(kept[0], dim)[0])


@form("stack")
def _stack(g: Writer, parts: Any, dim: int = 0) -> Any:
    """One after the other along a new axis."""
    axis = dim % rank(g.result)
    return g.op("Concat", *(g.op("Unsqueeze", part, g.ints(axis)) for part in parts), axis_i=axis)


@form("split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split")
def _split(g: Writer, x: Written, sizes: Any, dim: int = 0) -> Any:
    """In parts along one axis."""
    axis = axes_of(x, dim)[0]
    lengths = [fixed(part, axis)[0] for part in g.made]
    if len(lengths) == 1:
        return [x]
    return g.op("Split", x, g.ints(*lengths), axis_i=axis, outputs=len(lengths))


@form("unbind")
def _unbind(g: Writer, x: Written, dim: int = 0) -> Any:
    """Every entry along one axis."""
    axis = axes_of(x, dim)[0]
    return [_select(g, x, axis, at) for at in range(fixed(x, axis)[0])]


@form("select")
def _select(g: Writer, x: Written, dim: int, at: Any) -> Any:
    """One entry along one axis."""
    place = at if isinstance(at, Written) else g.constant(np.array(at, np.int64))
    if isinstance(at, Written):
        place = g.op("Squeeze", at, g.ints(0))
    return g.op("Gather", x, place, axis_i=axes_of(x, dim)[0])


@form("slice")
def _slice(g: Writer, x: Written, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """From one place to another."""
    start, end = 0 if start is None else start, _END if end is None else end
    if start == 0 and end == _END and step == 1:
        return x
    axis = axes_of(x, dim)[0]
    places = [g.vector([part]) for part in (start, end)]
    return g.op("Slice", x, *places, g.ints(axis), *([g.ints(step)] if step != 1 else []))


@form("narrow")
def _narrow(g: Writer, x: Written, dim: int, start: Any, length: Any) -> Any:
    """So many entries from one place on."""
    if isinstance(start, Written) or isinstance(length, Written):
        raise Uncaptured("a part of computed length has no form")
    return _slice(g, x, dim, start, start + length)


@form("flip")
def _flip(g: Writer, x: Written, dims: Sequence[int]) -> Any:
    """Axes run backwards."""
    axes = axes_of(x, list(dims))
    ones = [-1] * len(axes)
    return g.op("Slice", x, g.ints(*ones), g.ints(*[-_END] * len(axes)), g.ints(*axes), g.ints(*ones))


@form("roll")
def _roll(g: Writer, x: Written, shifts: Any, dims: Any = ()) -> Any:
    """Entries moved along, those that fall off set before."""
    if not dims:
        raise Uncaptured("a roll over all axes has no form")
    for axis, shift in zip(axes_of(x, list(dims)), shifts, strict=True):
        parts = [
            g.op("Slice", x, g.ints(a), g.ints(b), g.ints(axis)) for a, b in ((-shift, _END), (0, -shift)) if shift
        ]
        x = Written(g.op("Concat", *parts, axis_i=axis).name, x.sizes, x.dtype) if parts else x
    return x


@form("index_select")
def _index_select(g: Writer, x: Written, dim: int, index: Written) -> Any:
    """Entries at these places of one axis."""
    return g.op("Gather", x, index, axis_i=axes_of(x, dim)[0])


@form("gather")
def _gather(g: Writer, x: Written, dim: int, index: Written, *_: Any) -> Any:
    """For each place its own entry along one axis."""
    return g.op("GatherElements", x, index, axis_i=axes_of(x, dim)[0])


@form("scatter_add")
def _scatter_add(g: Writer, x: Written, dim: int, index: Written, source: Written) -> Any:
    """Entries added at their places along one axis."""
    if known(index) != known(source):
        raise Uncaptured("scattering a part of a value has no form")
    return g.op("ScatterElements", x, index, source, axis_i=axes_of(x, dim)[0], reduction_s="add")


@form("scatter")
def _scatter(g: Writer, x: Written, dim: int, index: Written, source: Any, *rest: Any) -> Any:
    """Entries put at their places along one axis."""
    if rest or (isinstance(source, Written) and known(index) != known(source)):
        raise Uncaptured("scattering a part of a value has no form")
    if not isinstance(source, Written):
        source = g.op("Expand", g.scalar(source, x.dtype), g.op("Shape", index))
    return g.op("ScatterElements", x, index, source, axis_i=axes_of(x, dim)[0])


@form("index")
def _index(g: Writer, x: Written, places: Any) -> Any:
    """x[..., i, j, ...]: entries at places of one axis, or of several that lie side by side."""
    axes = [axis for axis, place in enumerate(places) if place is not None]
    chosen = [places[axis] for axis in axes]
    if any(place.dtype == torch.bool for place in chosen) or axes != list(range(axes[0], axes[-1] + 1)):
        raise Uncaptured("a choice by truths, or by axes that lie apart, has no form")
    if len(axes) == 1:
        return g.op("Gather", x, chosen[0], axis_i=axes[0])
    sizes = fixed(x, *axes)
    total: Any = None
    for place, size, rest in zip(chosen, sizes, [math.prod(sizes[at + 1 :]) for at in range(len(sizes))], strict=True):
        negative = g.op("Less", place, g.scalar(0, place.dtype))
        inside = g.op("Where", negative, g.op("Add", place, g.scalar(size, place.dtype)), place)
        column = g.op("Mul", inside, g.scalar(rest, place.dtype))
        total = column if total is None else g.op("Add", total, column)
    merged = [*known(x)[: axes[0]], math.prod(sizes), *known(x)[axes[-1] + 1 :]]
    if merged.count(None) > 1:
        raise Uncaptured("a shape with several free sizes has no form")
    flat = g.op("Reshape", x, g.ints(*(-1 if size is None else size for size in merged)))
    return g.op("Gather", flat, total, axis_i=axes[0])


@form("pad")
def _pad(g: Writer, x: Written, pads: Any, mode: str = "constant", value: Any = None) -> Any:
    """Something around."""
    count = rank(x)
    if mode == "circular":
        return _wrapped(g, x, pads)
    if any(isinstance(part, Written) for part in pads):
        raise Uncaptured("padding of computed width has no form")
    before, after = [0] * count, [0] * count
    for at in range(len(pads) // 2):
        before[count - 1 - at], after[count - 1 - at] = pads[2 * at], pads[2 * at + 1]
    filled = [g.scalar(value or 0, x.dtype)] if mode == "constant" else []
    return g.op("Pad", x, g.ints(*before, *after), *filled, mode_s=_MODES[mode])


def _wrapped(g: Writer, x: Written, pads: Any) -> Any:
    """The other end on either side, axis by axis."""
    made = x
    for at in range(len(pads) // 2):
        axis, (left, right) = rank(x) - 1 - at, pads[2 * at : 2 * at + 2]
        if min(left, right) < 0:
            raise Uncaptured("wrapping that cuts off has no form")
        parts = [g.op("Slice", made, g.ints(-left), g.ints(_END), g.ints(axis))] if left else []
        parts.append(made)
        parts += [g.op("Slice", made, g.ints(0), g.ints(right), g.ints(axis))] if right else []
        made = g.op("Concat", *parts, axis_i=axis) if len(parts) > 1 else made
    return made


@form("constant_pad_nd")
def _constant_pad(g: Writer, x: Written, pads: Any, value: Any = 0) -> Any:
    """A number around."""
    return _pad(g, x, pads, "constant", value)


@form("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(g: Writer, x: Written, pads: Any) -> Any:
    """The mirrored value around."""
    return _pad(g, x, pads, "reflect")


@form("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(g: Writer, x: Written, pads: Any) -> Any:
    """The outermost entries around."""
    return _pad(g, x, pads, "replicate")


@form("tril")
def _tril(g: Writer, x: Written, diagonal: int = 0) -> Any:
    """Zero above a diagonal."""
    return g.op("Trilu", x, g.constant(np.array(diagonal, np.int64)), upper_i=0)


@form("triu")
def _triu(g: Writer, x: Written, diagonal: int = 0) -> Any:
    """Zero below a diagonal."""
    return g.op("Trilu", x, g.constant(np.array(diagonal, np.int64)), upper_i=1)


@form("one_hot")
def _one_hot(g: Writer, x: Written, classes: int) -> Any:
    """Where the class is each number."""
    if classes < 0:
        raise Uncaptured("classes that the data counts have no form")
    places = g.constant(np.arange(classes, dtype=np.int64))
    return g.op("Cast", g.op("Equal", g.op("Unsqueeze", x, g.ints(-1)), places), to_i=7)


@form("meshgrid")
def _meshgrid(g: Writer, axes: Any, indexing: str = "ij") -> Any:
    """Every axis along its own of a grid."""
    if indexing != "ij":
        raise Uncaptured("a grid by columns has no form")
    made = []
    for at, (axis, like) in enumerate(zip(axes, g.made, strict=True)):
        column = g.op("Reshape", axis, g.ints(*(-1 if at == other else 1 for other in range(len(axes)))))
        made.append(g.op("Expand", column, g.ints(*fixed(like, *range(len(axes))))))
    return made


@form("topk")
def _topk(g: Writer, x: Written, count: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    """The largest entries and their places."""
    return g.op(
        "TopK", x, g.ints(count), axis_i=axes_of(x, dim)[0], largest_i=int(largest), sorted_i=int(ordered), outputs=2
    )


@form("einsum")
def _einsum(g: Writer, equation: str, operands: Any, *_: Any) -> Any:
    """As an operator."""
    return g.op("Einsum", *operands, equation_s=equation)
