"""Gradients of reductions and of the softmax family."""

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Node
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only


def _axes(ctx: Backward, node: Node) -> list[int]:
    """The reduced axes, counted from the front; all of them when none are given."""
    rank = len(ctx.shape(node.inputs[0]))
    axes = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1]:
        value = ctx.const_value(node.inputs[1])
        axes = None if value is None else value.tolist()
    return sorted(int(axis) % rank for axis in axes) if axes else list(range(rank))


def _kept(ctx: Backward, node: Node, value: str) -> str:
    """A reduced value with its reduced axes back as size one."""
    if node.attrs.get("keepdims", 1):
        return value
    shape = ctx.shape(node.inputs[0])
    axes = _axes(ctx, node)
    kept = tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    if kept.count(-1) <= 1:
        return ctx.graph.op("Reshape", value, ctx.graph.ints(*kept))
    return ctx.graph.op("Unsqueeze", value, ctx.graph.ints(*axes))


def spread(ctx: Backward, value: str, like: str) -> str:
    """Broadcast a value to the shape of a known one."""
    shape = ctx.shape(like)
    target = ctx.graph.ints(*shape) if -1 not in shape else ctx.graph.op("Shape", like)
    return ctx.graph.op("Expand", value, target)


def _count(ctx: Backward, node: Node) -> str:
    """How many entries one result of a reduction stands for."""
    g, shape = ctx.graph, ctx.shape(node.inputs[0])
    sizes = [shape[axis] for axis in _axes(ctx, node)]
    if -1 not in sizes:
        return g.scalar(float(np.prod(sizes)))
    whole = g.op("Cast", g.op("Size", node.inputs[0]), to=1)
    return g.op("Div", whole, g.op("Cast", g.op("Size", node.outputs[0]), to=1))


@rule("ReduceSum")
def reduce_sum(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = sum x"""
    return [spread(ctx, _kept(ctx, node, only(grads)), node.inputs[0])]


@rule("ReduceMean")
def reduce_mean(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = mean x"""
    share = ctx.graph.op("Div", _kept(ctx, node, only(grads)), _count(ctx, node))
    return [spread(ctx, share, node.inputs[0])]


@rule("ReduceMax", "ReduceMin")
def reduce_extreme(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """The gradient goes to the extreme entries; equal ones share it."""
    g, x = ctx.graph, node.inputs[0]
    wins = g.op("Cast", g.op("Equal", x, _kept(ctx, node, node.outputs[0])), to=1)
    count = g.op("ReduceSum", wins, g.ints(*_axes(ctx, node)), keepdims=1)
    return [g.op("Mul", wins, g.op("Div", _kept(ctx, node, only(grads)), count))]


@rule("ReduceL2")
def reduce_l2(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = ||x||; dx = dy x / y, 0 where y = 0"""
    g, x = ctx.graph, node.inputs[0]
    norm = g.op("Max", _kept(ctx, node, node.outputs[0]), g.scalar(1e-30))
    return [g.op("Mul", x, g.op("Div", _kept(ctx, node, only(grads)), norm))]


@rule("ReduceL1")
def reduce_l1(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = sum |x|"""
    return [ctx.graph.op("Mul", ctx.graph.op("Sign", node.inputs[0]), _kept(ctx, node, only(grads)))]


@rule("ReduceSumSquare")
def reduce_sum_square(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = sum x^2"""
    g = ctx.graph
    return [g.op("Mul", node.inputs[0], g.op("Mul", _kept(ctx, node, only(grads)), g.scalar(2.0)))]


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = log sum exp x; dx = dy exp(x - y)"""
    g, x = ctx.graph, node.inputs[0]
    weight = g.op("Exp", g.op("Sub", x, _kept(ctx, node, node.outputs[0])))
    return [g.op("Mul", weight, _kept(ctx, node, only(grads)))]


@rule("CumSum")
def cumsum(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """The running sum of dy from the other end."""
    backwards = 1 - int(node.attrs.get("reverse", 0))
    exclusive = int(node.attrs.get("exclusive", 0))
    return [ctx.graph.op("CumSum", only(grads), node.inputs[1], reverse=backwards, exclusive=exclusive), None]


@rule("Softmax")
def softmax(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = y (dy - sum y dy)"""
    g, y, dy = ctx.graph, node.outputs[0], only(grads)
    axis = int(node.attrs.get("axis", -1)) % len(ctx.shape(y))
    mixed = mixed_values(ctx, y, dy) if axis == len(ctx.shape(y)) - 1 else None
    # In attention, sum y dy over the keys is sum o do over the far fewer values of o = y v.
    left, right = mixed or (y, dy)
    total = g.op("ReduceSum", g.op("Mul", left, right), g.ints(axis), keepdims=1)
    return [g.op("Mul", y, g.op("Sub", dy, total))]


def mixed_values(ctx: Backward, y: str, dy: str) -> tuple[str, str] | None:
    """(o, do) if y is only used in o = y v, so that dy = do v'; None otherwise."""
    makers = ctx.graph.producers()
    maker = makers.get(dy)
    turned = makers.get(maker.inputs[1]) if maker is not None and maker.op == "MatMul" else None
    if maker is None or turned is None or turned.op != "Transpose":
        return None
    uses = [n for n in ctx.graph.nodes if n.op == "MatMul" and n.inputs == [y, turned.inputs[0]]]
    if len(uses) != 1 or ctx.shape(uses[0].outputs[0])[:-1] != ctx.shape(y)[:-1]:
        return None
    return uses[0].outputs[0], maker.inputs[0]


@rule("LogSoftmax")
def log_softmax(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy - exp(y) sum dy"""
    g, y, dy = ctx.graph, node.outputs[0], only(grads)
    axis = int(node.attrs.get("axis", -1)) % len(ctx.shape(y))
    total = g.op("ReduceSum", dy, g.ints(axis), keepdims=1)
    return [g.op("Sub", dy, g.op("Mul", g.op("Exp", y), total))]
