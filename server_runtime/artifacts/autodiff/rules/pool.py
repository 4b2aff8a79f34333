"""Gradients of pooling.

Max pooling shares the gradient equally among equal maxima of a window; flat image regions make these common, and
passing the whole gradient to each of them would be wrong.
"""

from math import prod
from typing import Any

import numpy as np

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Array, Graph, Node, Shape


@rule("MaxPool")
def max_pool(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Windows side by side: a mask of maxima; else the positions that the forward pass can report."""
    dy = grads[0]
    assert dy is not None
    x, y = node.inputs[0], node.outputs[0]
    size_in, size_out = context.shape(x)[2:], context.shape(y)[2:]
    if _side_by_side(node, size_in, size_out):
        return [_spread_to_maxima(context.graph, x, y, dy, kernel=_kernel(node), size_in=size_in)]
    return [_scatter_to_positions(context, node, dy)]


@rule("GlobalMaxPool")
def global_max_pool(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """dY / number of maxima, at every maximum."""
    (dy,) = grads
    assert dy is not None
    graph, x = context.graph, node.inputs[0]
    axes = range(2, len(context.shape(x)))
    mask = graph.op("Cast", graph.op("Equal", x, node.outputs[0]), to=1)
    ties = graph.op("ReduceSum", mask, graph.ints(*axes), keepdims=1)
    return [graph.op("Mul", mask, graph.op("Div", dy, ties))]


@rule("AveragePool")
def average_pool(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Every input of a window gets an equal part of its gradient."""
    (dy,) = grads
    assert dy is not None
    graph, x = context.graph, node.inputs[0]
    size_in, size_out = context.shape(x)[2:], context.shape(node.outputs[0])[2:]
    kernel = _kernel(node)
    if _side_by_side(node, size_in, size_out):
        part = graph.op("Mul", dy, graph.scalar(1.0 / prod(kernel)))
        return [_uncrop(graph, _enlarge(graph, part, kernel), kernel, size_in)]
    share = graph.op("Mul", dy, graph.constant(1.0 / _window_counts(node, size_in, size_out)))
    return [_spread_overlapping(context, node, share)]


@rule("GlobalAveragePool")
def global_average_pool(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """dY / positions, everywhere."""
    (dy,) = grads
    assert dy is not None
    graph, x = context.graph, node.inputs[0]
    shape = context.shape(x)
    part = graph.op("Mul", dy, graph.scalar(1.0 / prod(shape[2:])))
    return [graph.op("Expand", part, graph.ints(1, 1, *shape[2:]))]


def _kernel(node: Node) -> Shape:
    return tuple(node.attrs["kernel_shape"])


def _strides(node: Node) -> Shape:
    return tuple(node.attrs.get("strides", (1,) * len(_kernel(node))))


def _pads(node: Node) -> Shape:
    return tuple(node.attrs.get("pads", (0,) * 2 * len(_kernel(node))))


def _side_by_side(node: Node, size_in: Shape, size_out: Shape) -> bool:
    """Do the windows neither overlap nor reach over the edge?"""
    kernel = _kernel(node)
    inside = all(out * k <= size for size, out, k in zip(size_in, size_out, kernel, strict=True))
    whole = set(node.attrs.get("dilations", (1,))) == {1} and not any(_pads(node))
    return _strides(node) == kernel and inside and whole


def _enlarge(graph: Graph, value: str, kernel: Shape) -> str:
    """Repeat every element over its window."""
    scales = graph.constant(np.array((1, 1, *kernel), dtype=np.float32), "scales")
    return graph.op(
        "Resize",
        value,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _crop(graph: Graph, value: str, kernel: Shape, size_in: Shape) -> str:
    """The part of an image that whole windows cover."""
    if all(size % k == 0 for size, k in zip(size_in, kernel, strict=True)):
        return value
    stops = [size - size % k for size, k in zip(size_in, kernel, strict=True)]
    rank = len(kernel)
    return graph.op("Slice", value, graph.ints(*[0] * rank), graph.ints(*stops), graph.ints(*range(2, 2 + rank)))


def _uncrop(graph: Graph, value: str, kernel: Shape, size_in: Shape) -> str:
    """Zeros for the part of an image that no window covers."""
    rest = [size % k for size, k in zip(size_in, kernel, strict=True)]
    if not any(rest):
        return value
    return graph.op("Pad", value, graph.ints(*[0] * (4 + len(rest)), *rest))


def _spread_to_maxima(graph: Graph, x: str, y: str, dy: str, *, kernel: Shape, size_in: Shape) -> str:
    """dX = [x is its window's maximum] * dY / (number of maxima in the window)."""
    covered = _crop(graph, x, kernel, size_in)
    mask = graph.op("Cast", graph.op("Equal", covered, _enlarge(graph, y, kernel)), to=1)
    mean = graph.op("AveragePool", mask, kernel_shape=list(kernel), strides=list(kernel))
    ties = graph.op("Mul", mean, graph.scalar(float(prod(kernel))))
    share = _enlarge(graph, graph.op("Div", dy, ties), kernel)
    return _uncrop(graph, graph.op("Mul", mask, share), kernel, size_in)


def _scatter_to_positions(context: Backward, node: Node, dy: str) -> str:
    """Overlapping or padded windows: add dY at the positions of the maxima, counted from each sample's start."""
    if len(node.outputs) > 1 and node.outputs[1]:
        positions = node.outputs[1]
    else:
        positions = context.graph.fresh("positions")
        context.graph.record(positions, context.shape(node.outputs[0]), np.int64)
        node.outputs = [node.outputs[0], positions]
    if node.attrs.get("storage_order", 0):
        raise UnsupportedOperator("MaxPool with storage_order 1", node.name, node.module)
    graph, x = context.graph, node.inputs[0]
    size, rows = prod(context.shape(x)[1:]), graph.ints(-1, prod(context.shape(node.outputs[0])[1:]))
    zeros = graph.op("ConstantOfShape", graph.op("Shape", graph.op("Reshape", x, graph.ints(-1, size))))
    # onnxruntime counts positions through the whole batch; devices refuse what could add across samples.
    own = graph.op("Mod", positions, graph.constant(np.array(size)))
    where, what = graph.op("Reshape", own, rows), graph.op("Reshape", dy, rows)
    return context.reshape_like(graph.op("ScatterElements", zeros, where, what, axis=1, reduction="add"), x)


def _window_counts(node: Node, size_in: Shape, size_out: Shape) -> Array:
    """By how many elements each output of an average pool was divided, [1, 1, *size_out]."""
    pads, rank = _pads(node), len(_kernel(node))
    counts = np.ones(())
    for axis in range(rank):
        begin, end = pads[axis], pads[rank + axis]
        low, high = (-begin, size_in[axis] + end) if node.attrs.get("count_include_pad", 0) else (0, size_in[axis])
        starts = np.arange(size_out[axis]) * _strides(node)[axis] - begin
        stops = np.minimum(starts + _kernel(node)[axis], high)
        counts = np.multiply.outer(counts, stops - np.maximum(starts, low))
    return counts[None, None].astype(np.float32)


def _spread_overlapping(context: Backward, node: Node, share: str) -> str:
    """Each window's share added to all its inputs: a transposed convolution of one channel with ones."""
    graph, x = context.graph, node.inputs[0]
    size_in, size_out = context.shape(x)[2:], context.shape(node.outputs[0])[2:]
    kernel, strides, pads = _kernel(node), _strides(node), _pads(node)
    ends, extra = [], []
    for axis, k in enumerate(kernel):
        over = (size_out[axis] - 1) * strides[axis] + k - pads[axis] - size_in[axis]
        ends.append(max(over, 0))
        extra.append(max(-over, 0))
    images = graph.op("Reshape", share, graph.ints(-1, 1, *size_out))
    ones = graph.constant(np.ones((1, 1, *kernel), dtype=np.float32), "ones")
    attrs: dict[str, Any] = {"strides": list(strides), "pads": [*pads[: len(kernel)], *ends], "output_padding": extra}
    spread: str = graph.op("ConvTranspose", images, ones, **attrs)
    return context.reshape_like(spread, x)
