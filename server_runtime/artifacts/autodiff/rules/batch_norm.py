"""Batch normalisation in training mode: batch statistics, then the affine map per channel that inference uses.

With m values per channel, z = x - mean, inv = (variance + eps)^-1/2, a = scale * inv and cov = mean(dy * z):
    d_scale = m * inv * cov      d_bias = m * mean(dy)
    dx = a * (dy + k * z + c)    k = -inv^2 * cov, c = -mean(dy)
Only z is kept, in the place of x: variance and covariance of values that are far from zero but close to each other
(few samples, maps of few positions) would be lost in rounding as mean(x^2) - mean^2.

A convolution right before it joins in: where its weights are smaller than its output, they are multiplied by `a`
instead of dx.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.conv_forms import Geometry
from fedwright.server_runtime.artifacts.autodiff.conv_table import input_form, scaling_weights_pays, weight_form
from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Composite, Graph, Node, Shape
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering

# Positions per channel and sample from which a dot product per row beats multiplying and summing.
DOT_POSITIONS = 200


@dataclass(frozen=True)
class Batch:
    """Names of a layer's input, the same without its mean, mean and variance per channel, and values per channel."""

    x: str
    centred: str
    mean: str
    variance: str
    count: str
    epsilon: float


@dataclass(frozen=True)
class Backflow:
    """Names of what the backward pass of a layer makes: dx = factor * unscaled, d_scale and d_bias."""

    unscaled: str
    factor: str
    d_scale: str
    d_bias: str


@lowering("BatchNormalization")
def batch_normalization(graph: Graph, node: Node) -> bool:
    """Statistics from the batch; running statistics follow as torch updates them (unbiased variance)."""
    if not node.attrs.get("training_mode", 0):
        return False
    x, scale, bias = node.inputs[:3]
    convolution = _convolution_before(graph, x)
    batch = _statistics(graph, x, node.attrs.get("epsilon", 1e-5))
    zeros = _fill(graph, graph.shape(x), 0.0)
    y = graph.op("BatchNormalization", batch.centred, scale, bias, zeros, batch.variance, epsilon=batch.epsilon)
    graph.rename_output(y, node.outputs[0])
    if convolution is None:
        made = Composite((x, scale, bias), lambda context, dy: _gradient(context, dy, batch, scale))
    else:
        inputs = (*convolution.inputs[:2], scale, bias)
        made = Composite(inputs, lambda context, dy: _joint_gradient(context, dy, batch, scale, convolution))
    graph.composites[node.outputs[0]] = made
    _update_running(graph, node, batch)
    return True


def _convolution_before(graph: Graph, x: str) -> Node | None:
    """The convolution that makes x, if nobody else reads x and it has no bias of its own."""
    node = next((node for node in reversed(graph.nodes) if x in node.outputs), None)
    usable = node is not None and node.op == "Conv" and len(node.inputs) == 2 and graph.uses.get(x) == 1
    return node if usable else None


def _statistics(graph: Graph, x: str, epsilon: float) -> Batch:
    """Mean and biased variance per channel, in two passes."""
    shape = graph.shape(x)
    mean = _channel_mean(graph, x, len(shape))
    zeros, ones = (_fill(graph, shape, value) for value in (0.0, 1.0))
    centred = graph.op("BatchNormalization", x, ones, zeros, mean, ones, epsilon=0.0)
    variance = _mean_product(graph, centred, centred, shape)
    size = graph.op("Cast", graph.op("Size", x), to=1)
    return Batch(x, centred, mean, variance, graph.op("Div", size, graph.scalar(shape[1])), epsilon)


def _fill(graph: Graph, shape: Shape, value: float) -> str:
    """The same number for every channel of a value of this shape."""
    return graph.constant(np.full(shape[1], value, np.float32), "fill")


def _channel_mean(graph: Graph, x: str, rank: int) -> str:
    """Mean over all axes but the second, spatial axes first: that is the fast order."""
    if rank > 2:
        x = graph.op("ReduceMean", x, axes=list(range(2, rank)), keepdims=0)
    return graph.op("ReduceMean", x, axes=[0], keepdims=0)


def _mean_product(graph: Graph, a: str, b: str, shape: Shape) -> str:
    """Mean of a * b per channel, without storing the product where the runtime has a faster way."""
    positions = prod(shape[2:])
    if positions >= DOT_POSITIONS:
        rows = [graph.op("Reshape", value, graph.ints(-1, 1, positions)) for value in (a, b)]
        dots = graph.op("MatMul", rows[0], graph.op("Transpose", rows[1], perm=[0, 2, 1]))
        sums = graph.op("Reshape", dots, graph.ints(-1, shape[1]))
    elif a == b and positions > 1:
        sums = graph.op("ReduceSumSquare", a, axes=list(range(2, len(shape))), keepdims=0)
    else:
        return _channel_mean(graph, graph.op("Mul", a, b), len(shape))
    return graph.op("Mul", graph.op("ReduceMean", sums, axes=[0], keepdims=0), graph.scalar(1.0 / positions))


def _update_running(graph: Graph, node: Node, batch: Batch) -> None:
    """keep * old + (1 - keep) * new, the variance with the divisor count - 1."""
    keep = node.attrs.get("momentum", 0.9)
    fewer = graph.op("Max", graph.op("Sub", batch.count, graph.scalar(1.0)), graph.scalar(1.0))
    unbiased = graph.op("Mul", batch.variance, graph.op("Div", batch.count, fewer))
    for old, new, output in zip(node.inputs[3:5], (batch.mean, unbiased), node.outputs[1:3], strict=True):
        kept = graph.op("Mul", old, graph.scalar(keep))
        graph.rename_output(graph.op("Add", kept, graph.op("Mul", new, graph.scalar(1.0 - keep))), output)


def _gradient(context: Backward, dy: str, batch: Batch, scale: str) -> list[str | None]:
    back = _backflow(context, dy, batch, scale)
    dx = _scaled(context, back, batch) if context.needs(batch.x) else None
    return [dx, back.d_scale, back.d_bias]


def _joint_gradient(context: Backward, dy: str, batch: Batch, scale: str, convolution: Node) -> list[str | None]:
    """Gradients of the convolution's input and weight, of scale and of bias."""
    graph = context.graph
    source, weight = convolution.inputs[:2]
    sizes = Geometry.of(convolution, context.shape(source), context.shape(weight), context.shape(batch.x))
    back = _backflow(context, dy, batch, scale)
    fold = scaling_weights_pays(sizes)
    flow = back.unscaled if fold else _scaled(context, back, batch)
    dx = dw = None
    if context.needs(source):
        scaled = _times_rows(graph, weight, back.factor, context.shape(weight)) if fold else weight
        dx = input_form(sizes)(graph, sizes, scaled, flow)
    if context.needs(weight):
        dw = weight_form(sizes)(graph, sizes, source, flow)
        dw = _times_rows(graph, dw, back.factor, context.shape(weight)) if fold else dw
    return [dx, dw, back.d_scale, back.d_bias]


def _backflow(context: Backward, dy: str, batch: Batch, scale: str) -> Backflow:
    graph, shape = context.graph, context.shape(batch.x)
    inv = graph.op("Reciprocal", graph.op("Sqrt", graph.op("Add", batch.variance, graph.scalar(batch.epsilon))))
    mean_dy = _channel_mean(graph, dy, len(shape))
    unit = graph.op("Mul", inv, _mean_product(graph, dy, batch.centred, shape))
    k = graph.op("Neg", graph.op("Mul", inv, unit))
    c = graph.op("Neg", mean_dy)
    zeros, ones = (_fill(graph, shape, value) for value in (0.0, 1.0))
    line = graph.op("BatchNormalization", batch.centred, k, c, zeros, ones, epsilon=0.0)
    return Backflow(
        unscaled=graph.op("Add", dy, line),
        factor=graph.op("Mul", scale, inv),
        d_scale=graph.op("Mul", unit, batch.count),
        d_bias=graph.op("Mul", mean_dy, batch.count),
    )


def _scaled(context: Backward, back: Backflow, batch: Batch) -> str:
    rank = len(context.shape(batch.x))
    column = context.graph.op("Reshape", back.factor, context.graph.ints(-1, *[1] * (rank - 2)))
    return context.graph.op("Mul", back.unscaled, column)


def _times_rows(graph: Graph, weight: str, factor: str, shape: Shape) -> str:
    """Each output channel's weights times its factor, as matrices: a kernel of one element would be slow."""
    column = graph.op("Reshape", factor, graph.ints(-1, 1))
    rows = graph.op("Mul", graph.op("Reshape", weight, graph.ints(shape[0], -1)), column)
    return graph.op("Reshape", rows, graph.ints(*shape))
