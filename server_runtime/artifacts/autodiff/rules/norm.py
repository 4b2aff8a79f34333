"""Gradients of layer, instance and inference-mode batch normalisation.

All share one formula: with u = (x - mean) * inv over a set of m elements and g the gradient that reaches u,
dx = inv * (g - mean(g) - u * mean(g * u)). Batch normalisation in training mode is rewritten by `lowering_norm`.
"""

from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node


def centre(graph: Graph, g: str, u: str, inv: str, axes: list[int]) -> str:
    """inv * (g - mean(g) - u * mean(g * u)), the means over `axes`."""
    mean_g = graph.op("ReduceMean", g, axes=axes, keepdims=1)
    mean_gu = graph.op("ReduceMean", graph.op("Mul", g, u), axes=axes, keepdims=1)
    rest = graph.op("Sub", graph.op("Sub", g, mean_g), graph.op("Mul", u, mean_gu))
    return graph.op("Mul", rest, inv)


@rule("LayerNormalization")
def layer_normalization(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """The node's own mean and inverse deviation are kept, the normalised value is recomputed."""
    dy = grads[0]
    assert dy is not None
    graph = context.graph
    x, scale = node.inputs[:2]
    rank = len(context.shape(x))
    axis = node.attrs.get("axis", -1) % rank
    while len(node.outputs) < 3:
        node.outputs.append("")
    node.outputs = [name or graph.fresh("statistics") for name in node.outputs]
    mean, inv = node.outputs[1:]
    u = graph.op("Mul", graph.op("Sub", x, mean), inv)
    axes = list(range(axis, rank))
    dx = centre(graph, graph.op("Mul", dy, scale), u, inv, axes) if context.needs(x) else None
    lead = graph.ints(*range(axis))
    dscale = graph.op("ReduceSum", graph.op("Mul", dy, u), lead, keepdims=0) if context.needs(scale) else None
    bias = len(node.inputs) > 2 and context.needs(node.inputs[2])
    return [dx, dscale, graph.op("ReduceSum", dy, lead, keepdims=0) if bias else None]


@rule("InstanceNormalization")
def instance_normalization(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Statistics per sample and channel, recomputed from the input."""
    (dy,) = grads
    assert dy is not None
    graph = context.graph
    x, scale, bias = node.inputs
    axes = list(range(2, len(context.shape(x))))
    centred = graph.op("Sub", x, graph.op("ReduceMean", x, axes=axes, keepdims=1))
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), axes=axes, keepdims=1)
    shifted = graph.op("Add", variance, graph.scalar(node.attrs.get("epsilon", 1e-5)))
    inv = graph.op("Reciprocal", graph.op("Sqrt", shifted))
    u = graph.op("Mul", centred, inv)
    column = graph.op("Reshape", scale, graph.ints(-1, *[1] * len(axes)))
    dx = centre(graph, graph.op("Mul", dy, column), u, inv, axes) if context.needs(x) else None
    rest = graph.ints(0, *axes)
    dscale = graph.op("ReduceSum", graph.op("Mul", dy, u), rest, keepdims=0) if context.needs(scale) else None
    dbias = graph.op("ReduceSum", dy, rest, keepdims=0) if context.needs(bias) else None
    return [dx, dscale, dbias]


@rule("BatchNormalization")
def batch_normalization(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Fixed statistics (a frozen or evaluating layer): an affine map per channel."""
    dy = grads[0]
    assert dy is not None
    graph = context.graph
    x, scale, bias, mean, variance = node.inputs
    rank = len(context.shape(x))
    column = graph.ints(-1, *[1] * (rank - 2))
    shifted = graph.op("Add", variance, graph.scalar(node.attrs.get("epsilon", 1e-5)))
    inv = graph.op("Reciprocal", graph.op("Sqrt", shifted))
    dx = dscale = None
    if context.needs(x):
        dx = graph.op("Mul", dy, graph.op("Reshape", graph.op("Mul", scale, inv), column))
    rest = graph.ints(0, *range(2, rank))
    if context.needs(scale):
        centred = graph.op("Sub", x, graph.op("Reshape", mean, column))
        dscale = graph.op("Mul", graph.op("ReduceSum", graph.op("Mul", dy, centred), rest, keepdims=0), inv)
    dbias = graph.op("ReduceSum", dy, rest, keepdims=0) if context.needs(bias) else None
    return [dx, dscale, dbias, None, None]
