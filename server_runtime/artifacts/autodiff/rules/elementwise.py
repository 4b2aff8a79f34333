"""Gradients of elementwise operators. dy is the gradient of the output y; dx that of the input x."""

import math

import numpy as np

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Node

Grads = list[str | None]

# HardSigmoid with a huge slope is the fastest step function: 1 above zero, 0 at and below it.
_STEEP = 3e38
_POWER = 2.0**100


def step(ctx: Backward, value: str) -> str:
    """1 where the value is above zero, else 0."""
    return ctx.graph.op("HardSigmoid", value, alpha=_STEEP, beta=0.0)


def only(grads: Grads) -> str:
    """The gradient of the only output (the engine calls a rule only when there is one)."""
    assert grads[0] is not None
    return grads[0]


@rule("Add", "Sum")
def add(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = a + b + ..."""
    out = ctx.shape(node.outputs[0])
    return [ctx.unbroadcast(only(grads), out, name) if ctx.needs(name) else None for name in node.inputs]


@rule("Mean")
def mean(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = (a + b + ...) / n"""
    share = ctx.graph.op("Mul", only(grads), ctx.graph.scalar(1.0 / len(node.inputs)))
    return add(ctx, node, [share])


@rule("Sub")
def sub(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = a - b"""
    a, b = node.inputs
    out, dy = ctx.shape(node.outputs[0]), only(grads)
    da = ctx.unbroadcast(dy, out, a) if ctx.needs(a) else None
    db = ctx.graph.op("Neg", ctx.unbroadcast(dy, out, b)) if ctx.needs(b) else None
    return [da, db]


@rule("Mul")
def mul(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = a b"""
    a, b = node.inputs
    out, dy = ctx.shape(node.outputs[0]), only(grads)
    da = ctx.unbroadcast(ctx.graph.op("Mul", dy, b), out, a) if ctx.needs(a) else None
    db = ctx.unbroadcast(ctx.graph.op("Mul", dy, a), out, b) if ctx.needs(b) else None
    return [da, db]


@rule("Div")
def div(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = a / b; db = -dy y / b"""
    a, b = node.inputs
    out, g = ctx.shape(node.outputs[0]), ctx.graph
    share = g.op("Div", only(grads), b)
    da = ctx.unbroadcast(share, out, a) if ctx.needs(a) else None
    db = None
    if ctx.needs(b):
        db = g.op("Neg", ctx.unbroadcast(g.op("Mul", share, node.outputs[0]), out, b))
    return [da, db]


@rule("Neg")
def neg(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = -x"""
    return [ctx.graph.op("Neg", only(grads))]


@rule("Identity", "Cast")
def same(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = x (casts between floating-point types only; others stop the gradient)"""
    return [only(grads)]


@rule("Relu")
def relu(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy [y > 0]"""
    return [ctx.graph.op("Mul", only(grads), step(ctx, node.outputs[0]))]


@rule("LeakyRelu")
def leaky_relu(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy (alpha + (1 - alpha) [x > 0])"""
    g, alpha = ctx.graph, float(node.attrs.get("alpha", 0.01))
    slope = g.op("Add", g.op("Mul", step(ctx, node.inputs[0]), g.scalar(1 - alpha)), g.scalar(alpha))
    return [g.op("Mul", only(grads), slope)]


@rule("PRelu")
def prelu(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = max(x, 0) + slope min(x, 0)"""
    g, (x, slope), dy = ctx.graph, node.inputs, only(grads)
    positive = step(ctx, x)
    factor = g.op("Add", positive, g.op("Mul", g.op("Sub", g.scalar(1.0), positive), slope))
    dx = g.op("Mul", dy, factor)
    below = g.op("Mul", dy, g.op("Min", x, g.scalar(0.0)))
    dslope = ctx.unbroadcast(below, ctx.shape(node.outputs[0]), slope) if ctx.needs(slope) else None
    return [dx, dslope]


@rule("Elu")
def elu(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy where x > 0, dy (y + alpha) elsewhere"""
    g, y = ctx.graph, node.outputs[0]
    below = g.op("Min", y, g.scalar(0.0))
    alpha = float(node.attrs.get("alpha", 1.0))
    slope = g.op("Add", below, g.scalar(alpha))
    if alpha != 1.0:
        slope = g.op("Where", g.op("Greater", y, g.scalar(0.0)), g.scalar(1.0), slope)
    return [g.op("Mul", only(grads), slope)]


@rule("Selu")
def selu(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = gamma x where x > 0, gamma alpha (exp(x) - 1) elsewhere, where dx = dy (y + gamma alpha)"""
    g, y = ctx.graph, node.outputs[0]
    alpha, gamma = float(node.attrs.get("alpha", 1.6732632)), float(node.attrs.get("gamma", 1.0507010))
    below = g.op("Add", y, g.scalar(alpha * gamma))
    slope = g.op("Where", g.op("Greater", y, g.scalar(0.0)), g.scalar(gamma), below)
    return [g.op("Mul", only(grads), slope)]


@rule("Softsign")
def softsign(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = x / (1 + |x|); dx = dy (1 - |y|)^2"""
    g = ctx.graph
    rest = g.op("Sub", g.scalar(1.0), g.op("Abs", node.outputs[0]))
    return [g.op("Mul", only(grads), g.op("Mul", rest, rest))]


@rule("Softplus")
def softplus(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy sigmoid(x)"""
    return [ctx.graph.op("Mul", only(grads), ctx.graph.op("Sigmoid", node.inputs[0]))]


@rule("Sigmoid")
def sigmoid(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy y (1 - y)"""
    g, y = ctx.graph, node.outputs[0]
    return [g.op("Mul", only(grads), g.op("Mul", y, g.op("Sub", g.scalar(1.0), y)))]


@rule("Tanh")
def tanh(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy (1 - y^2)"""
    g, y = ctx.graph, node.outputs[0]
    return [g.op("Mul", only(grads), g.op("Sub", g.scalar(1.0), g.op("Mul", y, y)))]


@rule("Exp")
def exp(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy y"""
    return [ctx.graph.op("Mul", only(grads), node.outputs[0])]


@rule("Log")
def log(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy / x"""
    return [ctx.graph.op("Div", only(grads), node.inputs[0])]


@rule("Sqrt")
def sqrt(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy / (2 y)"""
    g = ctx.graph
    return [g.op("Div", g.op("Mul", only(grads), g.scalar(0.5)), node.outputs[0])]


@rule("Reciprocal")
def reciprocal(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = -dy y^2"""
    g, y = ctx.graph, node.outputs[0]
    return [g.op("Neg", g.op("Mul", only(grads), g.op("Mul", y, y)))]


@rule("Abs")
def absolute(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy sign(x)"""
    return [ctx.graph.op("Mul", only(grads), ctx.graph.op("Sign", node.inputs[0]))]


@rule("Erf")
def erf(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy 2/sqrt(pi) exp(-x^2)"""
    g, x = ctx.graph, node.inputs[0]
    bell = g.op("Exp", g.op("Neg", g.op("Mul", x, x)))
    return [g.op("Mul", only(grads), g.op("Mul", bell, g.scalar(2 / math.sqrt(math.pi))))]


@rule("Sin")
def sin(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy cos(x)"""
    return [ctx.graph.op("Mul", only(grads), ctx.graph.op("Cos", node.inputs[0]))]


@rule("Cos")
def cos(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = -dy sin(x)"""
    g = ctx.graph
    return [g.op("Neg", g.op("Mul", only(grads), g.op("Sin", node.inputs[0])))]


@rule("Sign", "Floor", "Ceil", "Round")
def flat(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Piecewise constant: no gradient."""
    return [None]


@rule("Pow")
def power(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = x^p; dx = dy p x^(p-1), dp = dy y log(x)"""
    g, (x, p), dy = ctx.graph, node.inputs, only(grads)
    out, known = ctx.shape(node.outputs[0]), ctx.const_value(p)
    dx = dp = None
    if ctx.needs(x):
        if known is not None and known.size == 1 and float(known) == 2.0:
            slope = g.op("Mul", x, g.scalar(2.0))
        else:
            exponent = p if ctx.dtype(p) == np.float32 else g.op("Cast", p, to=1)
            slope = g.op("Mul", exponent, g.op("Pow", x, g.op("Sub", exponent, g.scalar(1.0))))
        dx = ctx.unbroadcast(g.op("Mul", dy, slope), out, x)
    if ctx.needs(p):
        dp = ctx.unbroadcast(g.op("Mul", dy, g.op("Mul", node.outputs[0], g.op("Log", x))), out, p)
    return [dx, dp]


@rule("Where")
def where(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = a where the condition holds, else b"""
    g, (condition, a, b), dy = ctx.graph, node.inputs, only(grads)
    out = ctx.shape(node.outputs[0])
    da = ctx.unbroadcast(g.op("Where", condition, dy, g.scalar(0.0)), out, a) if ctx.needs(a) else None
    db = ctx.unbroadcast(g.op("Where", condition, g.scalar(0.0), dy), out, b) if ctx.needs(b) else None
    return [None, da, db]


@rule("Clip")
def clip(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy strictly inside the limits, 0 at and outside them"""
    g, y = ctx.graph, node.outputs[0]
    low = node.inputs[1] if len(node.inputs) > 1 else ""
    high = node.inputs[2] if len(node.inputs) > 2 else ""
    if any(ctx.needs(limit) for limit in (low, high) if limit):
        raise UnsupportedOperator("Clip with trained limits", node.name, node.module)
    if (mask := _between(ctx, y, low, high)) is not None:
        return [g.op("Mul", only(grads), mask)]
    above = y if _is_zero(ctx, low) else g.op("Sub", y, low) if low else ""
    below = g.op("Sub", high, y) if high else ""
    inside = g.op("Mul", above, below) if above and below else above or below
    return [g.op("Mul", only(grads), step(ctx, inside)) if inside else only(grads)]


def _between(ctx: Backward, y: str, low: str, high: str) -> str | None:
    """1 where low < y < high, else 0, by |y - middle| < half; None where rounding would blur a limit."""
    limits = [ctx.const_value(name) if name else None for name in (low, high)]
    if limits[0] is None or limits[1] is None or limits[0].size != 1 or limits[1].size != 1:
        return None
    bottom, top = (np.float32(limit.item()) for limit in limits if limit is not None)
    middle, half = (bottom + top) / np.float32(2), (top - bottom) / np.float32(2)
    # A power of two as slope and a middle of few digits keep the sum exact at both limits.
    if bottom - middle != -half or top - middle != half or float(half) * 4 != round(float(half) * 4):
        return None
    g = ctx.graph
    distance = g.op("Abs", g.op("Sub", y, g.scalar(float(middle))))
    return g.op("HardSigmoid", distance, alpha=-_POWER, beta=float(half) * _POWER)


def _is_zero(ctx: Backward, name: str) -> bool:
    value = ctx.const_value(name) if name else None
    return value is not None and value.size == 1 and float(value) == 0.0


@rule("HardSigmoid")
def hard_sigmoid(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = dy alpha where 0 < y < 1"""
    g, y = ctx.graph, node.outputs[0]
    inside = step(ctx, g.op("Mul", y, g.op("Sub", g.scalar(1.0), y)))
    return [g.op("Mul", only(grads), g.op("Mul", inside, g.scalar(float(node.attrs.get("alpha", 0.2)))))]


@rule("HardSwish")
def hard_swish(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """y = x h(x), h = clip(x/6 + 1/2, 0, 1); dx = dy (h + x h')"""
    g, x = ctx.graph, node.inputs[0]
    gate = g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    inside = step(ctx, g.op("Mul", gate, g.op("Sub", g.scalar(1.0), gate)))
    slope = g.op("Mul", g.op("Mul", x, g.scalar(1 / 6)), inside)
    return [g.op("Mul", only(grads), g.op("Add", gate, slope))]


@rule("Min", "Max")
def extreme(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """The gradient goes to the input that won; equal inputs share it."""
    g, y = ctx.graph, node.outputs[0]
    out = ctx.shape(y)
    if len(node.inputs) == 1:
        return [only(grads)]
    wins = [g.op("Cast", g.op("Equal", name, y), to=1) for name in node.inputs]
    share = g.op("Div", only(grads), g.op("Sum", *wins))
    return [
        ctx.unbroadcast(g.op("Mul", share, win), out, name) if ctx.needs(name) else None
        for name, win in zip(node.inputs, wins, strict=True)
    ]
