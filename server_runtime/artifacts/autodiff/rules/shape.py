"""Gradients of operators that only move values around."""

import numpy as np

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, BackwardStep, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Node
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy in the shape of x"""
    return [ctx.reshape_like(only(grads), node.inputs[0])]


@rule("Transpose")
def transpose(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy with the axes put back"""
    rank = len(ctx.shape(node.inputs[0]))
    perm = [int(axis) for axis in node.attrs.get("perm", range(rank)[::-1])]
    return [ctx.graph.op("Transpose", only(grads), perm=np.argsort(perm).tolist())]


@rule("Trilu")
def trilu(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = the same triangle of dy"""
    rest = [name for name in node.inputs[1:] if name]
    return [ctx.graph.op("Trilu", only(grads), *rest, upper=int(node.attrs.get("upper", 1))), None]


@rule("DepthToSpace", "SpaceToDepth")
def depth_and_space(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Each undoes the other; channels in rows of columns (CRD) are put in order by a transpose first"""
    g, size = ctx.graph, int(node.attrs["blocksize"])
    if node.op == "SpaceToDepth":
        return [g.op("DepthToSpace", only(grads), blocksize=size, mode="DCR")]
    dx = g.op("SpaceToDepth", only(grads), blocksize=size)
    if node.attrs.get("mode", "DCR") == "DCR":
        return [dx]
    _, channels, height, width = ctx.shape(node.inputs[0])
    split = g.op("Reshape", dx, g.ints(-1, size * size, channels // (size * size), height * width))
    return [ctx.reshape_like(g.op("Transpose", split, perm=[0, 2, 1, 3]), node.inputs[0])]


@rule("Expand")
def expand(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy summed over the repeats"""
    return [ctx.unbroadcast(only(grads), ctx.shape(node.outputs[0]), node.inputs[0]), None]


@rule("Tile")
def tile(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy summed over the repeats: split every axis in (repeat, size) and sum over the first of each pair"""
    x, repeats = node.inputs[0], ctx.const_value(node.inputs[1])
    shape, result = ctx.shape(x), ctx.shape(node.outputs[0])
    if repeats is None and all(size in (1, after) for size, after in zip(shape, result, strict=True)):
        # What is computed is a number of samples: an axis of one entry was spread over it.
        return [ctx.unbroadcast(only(grads), result, x), None]
    if repeats is None or shape.count(-1) > 1:
        raise UnsupportedOperator("Tile with computed repeats", node.name, node.module)
    g = ctx.graph
    split = [int(n) for pair in zip(repeats, shape, strict=True) for n in pair]
    pairs = g.op("Reshape", only(grads), g.ints(*split))
    axes = [2 * i for i in range(len(shape))]
    return [g.op("ReduceSum", pairs, g.ints(*axes), keepdims=0), None]


@rule("Concat")
def concat(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Every input takes its part of dy"""
    g, dy = ctx.graph, only(grads)
    axis = int(node.attrs["axis"]) % len(ctx.shape(node.outputs[0]))
    sizes = [ctx.shape(name)[axis] for name in node.inputs]
    if -1 in sizes:
        raise UnsupportedOperator("Concat along the batch", node.name, node.module)
    if len(node.inputs) == 1:
        return [dy]
    if all(ctx.needs(name) for name in node.inputs):
        return list(g.op("Split", dy, g.ints(*sizes), outputs=len(sizes), axis=axis))
    starts = np.cumsum([0, *sizes])
    return [
        g.op("Slice", dy, g.ints(int(starts[i])), g.ints(int(starts[i + 1])), g.ints(axis)) if ctx.needs(name) else None
        for i, name in enumerate(node.inputs)
    ]


@rule("Split")
def split(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """The gradients of the parts side by side"""
    x = node.inputs[0]
    axis = int(node.attrs.get("axis", 0)) % len(ctx.shape(x))
    start = 0
    for name, grad in zip(node.outputs, grads, strict=True):
        stop = start + ctx.shape(name)[axis]
        if grad is not None:
            ctx.add_piece(x, BackwardStep(grad, axis, start, stop))
        start = stop
    return [None]


@rule("Slice")
def slice_(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dy placed where it was taken from, zero elsewhere"""
    x, dy = node.inputs[0], only(grads)
    shape = ctx.shape(x)
    starts, ends, axes, steps = _slice_arguments(ctx, node)
    moved = [
        (axis, *slice(start, end, step).indices(shape[axis]))
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
        if not _whole(start, end, step, shape[axis])
    ]
    if any(shape[axis] == -1 for axis, *_ in moved):
        raise UnsupportedOperator("Slice along the batch", node.name, node.module)
    if len(moved) == 1 and moved[0][3] == 1:
        axis, start, stop, _ = moved[0]
        ctx.add_piece(x, BackwardStep(dy, axis, start, stop))
        return [None]
    for axis, start, stop, step in moved:
        dy = _unslice(ctx, dy, axis, range(start, stop, step), shape)
    return [dy]


def _whole(start: int, end: int, step: int, size: int) -> bool:
    return start == 0 and step == 1 and (end >= size if size != -1 else end >= 2**31 - 1)


def _slice_arguments(ctx: Backward, node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    values = [ctx.const_value(name) for name in node.inputs[1:] if name]
    if any(value is None for value in values):
        raise UnsupportedOperator("Slice with computed limits", node.name, node.module)
    lists = [[int(n) for n in np.atleast_1d(value)] for value in values if value is not None]
    rank = len(ctx.shape(node.inputs[0]))
    starts, ends = lists[0], lists[1]
    axes = [axis % rank for axis in lists[2]] if len(lists) > 2 else list(range(len(starts)))
    steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    return starts, ends, axes, steps


def _unslice(ctx: Backward, dy: str, axis: int, picked: range, shape: tuple[int, ...]) -> str:
    """Undo one strided slice: reverse if it ran backwards, put zeros between, pad to the full size."""
    g, rank = ctx.graph, len(shape)
    if picked.step < 0:
        dy = g.op("Slice", dy, g.ints(-1), g.ints(-(2**31)), g.ints(axis), g.ints(-1))
        picked = picked[::-1]
    if picked.step > 1:
        pads = [0] * (2 * (rank + 1))
        pads[rank + 1 + axis + 1] = picked.step - 1
        wide = g.op("Pad", g.op("Unsqueeze", dy, g.ints(axis + 1)), g.ints(*pads))
        joined = g.op("Shape", wide)
        parts = [g.op("Slice", joined, g.ints(0), g.ints(axis)), g.ints(len(picked) * picked.step)]
        parts.append(g.op("Slice", joined, g.ints(axis + 2), g.ints(2**31 - 1)))
        dy = g.op("Reshape", wide, g.op("Concat", *parts, axis=0))
    length = len(picked) * picked.step if picked.step > 1 else len(picked)
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = picked.start, shape[axis] - picked.start - length
    return g.op("Pad", dy, g.ints(*pads))
