"""Batch normalisation in training mode: batch statistics, then the affine map per channel that inference uses.

With m values per channel, u = (x - mean) * inv and inv = (variance + eps)^-1/2:
    d_scale = sum(dy * u)      d_bias = sum(dy)
    dx = a * dy + k * x + c    a = scale * inv, k = -a * inv^2 * cov, c = -a * mean(dy) - k * mean,
                               cov = mean(dy * x) - mean * mean(dy)
so the normalised value is never stored.
"""

from dataclasses import dataclass

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Composite, Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering


@dataclass(frozen=True)
class Statistics:
    """Names of a batch's mean and variance per channel, and of the number of values behind them."""

    mean: str
    variance: str
    count: str


@lowering("BatchNormalization")
def batch_normalization(graph: Graph, node: Node) -> bool:
    """Statistics from the batch; running statistics follow as torch updates them (unbiased variance)."""
    if not node.attrs.get("training_mode", 0):
        return False
    x, scale, bias = node.inputs[:3]
    epsilon = node.attrs.get("epsilon", 1e-5)
    batch = _statistics(graph, x)
    y = graph.op("BatchNormalization", x, scale, bias, batch.mean, batch.variance, epsilon=epsilon)
    graph.rename_output(y, node.outputs[0])
    graph.composites[node.outputs[0]] = Composite(
        (x, scale, bias), lambda context, dy: _gradient(context, dy, x, scale, batch, epsilon)
    )
    _update_running(graph, node, batch)
    return True


def _statistics(graph: Graph, x: str) -> Statistics:
    """Mean and biased variance per channel, in two passes: one pass would cancel when the mean is large."""
    rank = len(graph.shape(x))
    mean = _channel_mean(graph, x, rank)
    centred = graph.op("Sub", x, graph.op("Reshape", mean, graph.ints(-1, *[1] * (rank - 2))))
    variance = _channel_mean(graph, graph.op("Mul", centred, centred), rank)
    size = graph.op("Cast", graph.op("Size", x), to=1)
    return Statistics(mean, variance, graph.op("Div", size, graph.scalar(graph.shape(x)[1])))


def _channel_mean(graph: Graph, x: str, rank: int) -> str:
    """Mean over all axes but the second, spatial axes first: that is the fast order."""
    if rank > 2:
        x = graph.op("ReduceMean", x, axes=list(range(2, rank)), keepdims=0)
    return graph.op("ReduceMean", x, axes=[0], keepdims=0)


def _update_running(graph: Graph, node: Node, batch: Statistics) -> None:
    keep = node.attrs.get("momentum", 0.9)
    fewer = graph.op("Max", graph.op("Sub", batch.count, graph.scalar(1.0)), graph.scalar(1.0))
    unbiased = graph.op("Mul", batch.variance, graph.op("Div", batch.count, fewer))
    for old, new, output in zip(node.inputs[3:], (batch.mean, unbiased), node.outputs[1:3], strict=False):
        kept = graph.op("Mul", old, graph.scalar(keep))
        graph.rename_output(graph.op("Add", kept, graph.op("Mul", new, graph.scalar(1.0 - keep))), output)


def _gradient(context: Backward, dy: str, x: str, scale: str, batch: Statistics, epsilon: float) -> list[str | None]:
    graph, rank = context.graph, len(context.shape(x))
    shifted = graph.op("Add", batch.variance, graph.scalar(epsilon))
    inv = graph.op("Reciprocal", graph.op("Sqrt", shifted))
    mean_dy = _channel_mean(graph, dy, rank)
    mean_dyx = _channel_mean(graph, graph.op("Mul", dy, x), rank)
    cov = graph.op("Sub", mean_dyx, graph.op("Mul", batch.mean, mean_dy))
    unit = graph.op("Mul", inv, cov)
    dx = None
    if context.needs(x):
        a = graph.op("Mul", scale, inv)
        k = graph.op("Neg", graph.op("Mul", graph.op("Mul", a, inv), unit))
        c = graph.op("Neg", graph.op("Add", graph.op("Mul", a, mean_dy), graph.op("Mul", k, batch.mean)))
        channels = context.shape(x)[1]
        none = graph.constant(np.zeros(channels, np.float32), "zeros")
        dx = graph.op("Add", _affine(graph, dy, a, none, channels), _affine(graph, x, k, c, channels))
    return [dx, graph.op("Mul", unit, batch.count), graph.op("Mul", mean_dy, batch.count)]


def _affine(graph: Graph, value: str, factor: str, shift: str, channels: int) -> str:
    """value * factor + shift per channel, in one pass."""
    zeros = graph.constant(np.zeros(channels, np.float32), "zeros")
    ones = graph.constant(np.ones(channels, np.float32), "ones")
    return graph.op("BatchNormalization", value, factor, shift, zeros, ones, epsilon=0.0)
