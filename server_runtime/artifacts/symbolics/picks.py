"""Indexing, sorting and moving entries around, in forms that can be differentiated and followed by devices."""

from typing import Any

import torch

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.symbolics.registry import (
    constant,
    is_none,
    known_sizes,
    number,
    rank_of,
    sizes_of,
    symbolic,
    whole,
    wholes,
)


@symbolic("aten::index_add")
def _index_add(g: Any, data: Any, dim: Any, index: Any, source: Any, alpha: Any = None) -> Any:
    """torch's own form refuses indices that repeat, which is what edges of graphs do."""
    axis = whole(dim, "dim")
    rank = rank_of(data, "index_add")
    if not is_none(alpha) and number(alpha, "alpha") != 1:
        raise UnsupportedOperator("index_add with alpha", "not exported", "")
    column = [-1 if i == axis % rank else 1 for i in range(rank)]
    places = g.op("Reshape", index, constant(g, column))
    spread = g.op("Expand", places, g.op("Shape", source))
    return g.op("ScatterElements", data, spread, source, axis_i=axis % rank, reduction_s="add")


@symbolic("aten::diff")
def _diff(g: Any, x: Any, n: Any, dim: Any, prepend: Any, append: Any) -> Any:
    """Differences of neighbours, n times, with what is set before and after."""
    axis = whole(dim, "dim")
    ends = [value for value in (prepend, x, append) if not is_none(value)]
    if len(ends) > 1:
        x = g.op("Concat", *ends, axis_i=axis)
    for _ in range(whole(n, "n")):
        end = torch.iinfo(torch.int64).max
        later = g.op("Slice", x, constant(g, [1]), constant(g, [end]), constant(g, [axis]))
        earlier = g.op("Slice", x, constant(g, [0]), constant(g, [-1]), constant(g, [axis]))
        x = g.op("Sub", later, earlier)
    return x


@symbolic("aten::repeat_interleave")
def _repeat_interleave(g: Any, x: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    """Each entry so many times; torch's own form changes the number `dim` wherever else the graph reads it."""
    if is_none(dim):
        raise UnsupportedOperator("repeat_interleave of all entries", "not exported", "")
    sizes, times = sizes_of(x, "repeat_interleave"), whole(repeats, "repeats")
    axis = whole(dim, "dim") % len(sizes)
    rest = sizes[axis + 1 :]
    if any(size is None for size in rest):
        raise UnsupportedOperator("repeat_interleave before a free size", "not exported", "")
    column = g.op("Unsqueeze", x, constant(g, [axis + 1]))
    tiled = g.op("Tile", column, constant(g, [1] * (axis + 1) + [times] + [1] * len(rest)))
    result = g.op("Reshape", tiled, constant(g, [0] * axis + [-1] + rest))
    if isinstance(result, torch._C.Value):
        long = None if sizes[axis] is None else sizes[axis] * times
        result.setType(x.type().with_sizes([*sizes[:axis], long, *rest]))
    return result


@symbolic("aten::take_along_dim")
def _take_along_dim(g: Any, x: Any, indices: Any, dim: Any) -> Any:
    """Entries along one axis by an index of the same shape but for that axis."""
    axis = whole(dim, "dim")
    return g.op("GatherElements", x, indices, axis_i=axis % rank_of(x, "take_along_dim"))


@symbolic("aten::rot90")
def _rot90(g: Any, x: Any, k: Any, dims: Any) -> Any:
    """Quarter turns: axes changed, one of them run backwards."""
    rank, turns = rank_of(x, "rot90"), whole(k, "k") % 4
    first, second = (axis % rank for axis in wholes(dims, "dims"))
    backwards = {0: [], 1: [second], 2: [first, second], 3: [first]}[turns]
    for axis in backwards:
        x = _reversed(g, x, axis)
    if turns % 2 == 0:
        return x
    perm = list(range(rank))
    perm[first], perm[second] = second, first
    return g.op("Transpose", x, perm_i=perm)


def _reversed(g: Any, x: Any, axis: int) -> Any:
    ends = (constant(g, [-1]), constant(g, [-(2**63) + 1]), constant(g, [axis]), constant(g, [-1]))
    return g.op("Slice", x, *ends)


@symbolic("aten::diag_embed")
def _diag_embed(g: Any, x: Any, offset: Any, dim1: Any, dim2: Any) -> Any:
    """A matrix with the last axis on its diagonal."""
    rank = rank_of(x, "diag_embed")
    axes = [whole(dim1, "dim1") % (rank + 1), whole(dim2, "dim2") % (rank + 1)]
    if whole(offset, "offset") or axes != [rank - 1, rank]:
        raise UnsupportedOperator("diag_embed beside the main diagonal of the last axes", "not exported", "")
    size = known_sizes(x, [-1], "diag_embed")[0]
    return g.op("Mul", g.op("Unsqueeze", x, constant(g, [-1])), constant(g, torch.eye(size)))


@symbolic("aten::median", "aten::kthvalue")
def _ranked(g: Any, x: Any, *rest: Any) -> Any:
    """The entry of a rank along one axis, by sorting that far."""
    if len(rest) not in (2, 3):
        raise UnsupportedOperator("median of all entries", "not exported", "")
    axis, keep = whole(rest[-2], "dim"), whole(rest[-1], "keepdim")
    size = known_sizes(x, [axis], "median")[0]
    rank = whole(rest[0], "k") if len(rest) == 3 else (size + 1) // 2
    found, places = g.op("TopK", x, constant(g, [rank]), axis_i=axis, largest_i=0, outputs=2)
    ends = (constant(g, [rank - 1]), constant(g, [rank]), constant(g, [axis]))
    found, places = g.op("Slice", found, *ends), g.op("Slice", places, *ends)
    if keep:
        return found, places
    return g.op("Squeeze", found, constant(g, [axis])), g.op("Squeeze", places, constant(g, [axis]))


def _part(g: Any, x: Any, axis: int, start: int, stop: int) -> Any:
    return g.op("Slice", x, constant(g, [start]), constant(g, [stop]), constant(g, [axis]))


@symbolic("aten::cumprod")
def _cumprod(g: Any, x: Any, dim: Any, dtype: Any = None) -> Any:
    """Products of all entries so far."""
    return _running(g, x, dim, "Mul")


@symbolic("aten::cummax")
def _cummax(g: Any, x: Any, dim: Any) -> Any:
    """The largest entry so far; its places are not made."""
    return _running(g, x, dim, "Max"), None


@symbolic("aten::cummin")
def _cummin(g: Any, x: Any, dim: Any) -> Any:
    """The smallest entry so far; its places are not made."""
    return _running(g, x, dim, "Min"), None


def _running(g: Any, x: Any, dim: Any, operator: str) -> Any:
    """One entry after the other: the result of those before, with the next."""
    axis = whole(dim, "dim") % rank_of(x, operator)
    parts: list[Any] = []
    for at in range(known_sizes(x, [axis], operator)[0]):
        part = _part(g, x, axis, at, at + 1)
        parts.append(g.op(operator, parts[-1], part) if parts else part)
    return g.op("Concat", *parts, axis_i=axis)


@symbolic("aten::prod")
def _prod(g: Any, x: Any, dim: Any, keepdim: Any = None, dtype: Any = None) -> Any:
    """The product along one axis."""
    if keepdim is None:
        raise UnsupportedOperator("prod over all entries", "not exported", "")
    axis = whole(dim, "dim") % rank_of(x, "prod")
    size = known_sizes(x, [axis], "prod")[0]
    parts = [_part(g, x, axis, at, at + 1) for at in range(size)]
    made = parts[0]
    for part in parts[1:]:
        made = g.op("Mul", made, part)
    return made if whole(keepdim, "keepdim") else g.op("Squeeze", made, constant(g, [axis]))
