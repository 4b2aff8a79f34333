"""Gradients of trigonometric and hyperbolic functions, and of remainders."""

from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only


def _square(g: Graph, x: str) -> str:
    return g.op("Mul", x, x)


@rule("Tan")
def tan(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy (1 + y^2)"""
    g = ctx.graph
    return [g.op("Mul", only(grads), g.op("Add", _square(g, node.outputs[0]), g.scalar(1.0)))]


@rule("Asin", "Acos")
def arc_sine(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy / sqrt(1 - x^2), and its negative for the cosine"""
    g = ctx.graph
    dx = g.op("Div", only(grads), g.op("Sqrt", g.op("Sub", g.scalar(1.0), _square(g, node.inputs[0]))))
    return [dx if node.op == "Asin" else g.op("Neg", dx)]


@rule("Atan")
def arc_tangent(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy / (1 + x^2)"""
    g = ctx.graph
    return [g.op("Div", only(grads), g.op("Add", _square(g, node.inputs[0]), g.scalar(1.0)))]


@rule("Sinh", "Cosh")
def hyperbolic(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Each is the slope of the other"""
    other = "Cosh" if node.op == "Sinh" else "Sinh"
    return [ctx.graph.op("Mul", only(grads), ctx.graph.op(other, node.inputs[0]))]


@rule("Asinh", "Acosh")
def area_sine(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy / sqrt(x^2 + 1), and - 1 for the cosine"""
    g = ctx.graph
    inside = g.op("Add", _square(g, node.inputs[0]), g.scalar(1.0 if node.op == "Asinh" else -1.0))
    return [g.op("Div", only(grads), g.op("Sqrt", inside))]


@rule("Atanh")
def area_tangent(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy / (1 - x^2)"""
    g = ctx.graph
    return [g.op("Div", only(grads), g.op("Sub", g.scalar(1.0), _square(g, node.inputs[0])))]


@rule("Mod")
def remainder(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = a - n b with a whole number n; db = -dy (a - y) / b"""
    g, (a, b), y = ctx.graph, node.inputs, node.outputs[0]
    out = ctx.shape(y)
    da = ctx.unbroadcast(only(grads), out, a) if ctx.needs(a) else None
    db = None
    if ctx.needs(b):
        times = g.op("Round", g.op("Div", g.op("Sub", a, y), b))
        db = g.op("Neg", ctx.unbroadcast(g.op("Mul", only(grads), times), out, b))
    return [da, db]
