"""Functions of single entries."""

import math
from typing import Any

import numpy as np
import torch

from fedwright.server_runtime.artifacts.captured.writer import (
    NUMPY,
    Form,
    Writer,
    Written,
    axes_of,
    common,
    fixed,
    form,
    known,
    rank,
)
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured

_SAME_NAME = (
    "Relu Sigmoid Tanh Exp Log Sqrt Abs Neg Erf Floor Ceil Round Sign Sin Cos Tan Asin Acos Atan Reciprocal Selu IsNaN"
)
_SHORT = {"arcsin": "Asin", "arccos": "Acos", "arctan": "Atan", "absolute": "Abs", "negative": "Neg"}
_ERF, _TANH = math.sqrt(2), (0.7978845608, 0.044715)


def _unary(kind: str) -> Form:
    def write(g: Writer, x: Written, *_: Any) -> Any:
        """The operator itself, of a value in the type of the result."""
        return g.op(kind, x if kind == "IsNaN" else g.cast(x, g.result.dtype))

    return write


def _names() -> dict[str, str]:
    return {kind.lower(): kind for kind in _SAME_NAME.split()} | _SHORT


for _name, _kind in _names().items():
    form(_name)(_unary(_kind))


def _binary(kind: str) -> Form:
    def write(g: Writer, x: Any, y: Any, *_: Any) -> Any:
        """The operator, of both in the type of the result."""
        return g.op(kind, g.cast(x, g.result.dtype), g.cast(y, g.result.dtype))

    return write


for _name, _kind in {"mul": "Mul", "multiply": "Mul", "maximum": "Max", "minimum": "Min"}.items():
    form(_name)(_binary(_kind))


def _compared(kind: str, *, denied: bool = False) -> Form:
    def write(g: Writer, x: Any, y: Any) -> Any:
        """Truth of a comparison."""
        dtype = common(x, y)
        made = g.op(kind, g.cast(x, dtype), g.cast(y, dtype))
        return g.op("Not", made) if denied else made

    return write


for _names_of, _kind, _denied in (
    (("eq",), "Equal", False),
    (("ne", "not_equal"), "Equal", True),
    (("lt", "less"), "Less", False),
    (("gt", "greater"), "Greater", False),
    (("le", "less_equal"), "LessOrEqual", False),
    (("ge", "greater_equal"), "GreaterOrEqual", False),
):
    form(*_names_of)(_compared(_kind, denied=_denied))


def _logical(kind: str, *, bits: bool) -> Form:
    def write(g: Writer, x: Any, *rest: Any) -> Any:
        """Of truths; of bits only where they are truths."""
        if bits and g.result.dtype != torch.bool:
            raise Uncaptured(f"{kind} of bits has no form")
        return g.op(kind, *(g.cast(value, torch.bool) for value in (x, *rest)))

    return write


for _kind in ("And", "Or", "Xor", "Not"):
    form(f"logical_{_kind.lower()}")(_logical(_kind, bits=False))
    form(f"bitwise_{_kind.lower()}", f"__{_kind.lower()}__")(_logical(_kind, bits=True))


@form("add")
def _add(g: Writer, x: Any, y: Any, alpha: Any = 1) -> Any:
    """x + alpha y"""
    return g.op("Add", g.cast(x, g.result.dtype), _scaled(g, y, alpha))


@form("sub", "subtract")
def _sub(g: Writer, x: Any, y: Any, alpha: Any = 1) -> Any:
    """x - alpha y"""
    return g.op("Sub", g.cast(x, g.result.dtype), _scaled(g, y, alpha))


@form("rsub")
def _rsub(g: Writer, x: Any, y: Any, alpha: Any = 1) -> Any:
    """y - alpha x"""
    return g.op("Sub", g.cast(y, g.result.dtype), _scaled(g, x, alpha))


def _scaled(g: Writer, y: Any, alpha: Any) -> Written:
    dtype = g.result.dtype
    y = g.cast(y, dtype)
    return y if alpha == 1 else Written(g.op("Mul", y, g.scalar(alpha, dtype)).name, y.sizes, dtype)


@form("div", "divide", "true_divide")
def _div(g: Writer, x: Any, y: Any, rounding: Any = None) -> Any:
    """x / y, rounded if asked for."""
    dtype = g.result.dtype
    made = g.op("Div", g.cast(x, dtype), g.cast(y, dtype))
    if rounding is None:
        return made
    if not dtype.is_floating_point:
        raise Uncaptured("a rounded quotient of whole numbers has no form")
    whole = g.op("Floor", g.op("Abs", made) if rounding == "trunc" else made)
    return whole if rounding == "floor" else g.op("Mul", g.op("Sign", made), whole)


@form("floor_divide", "__floordiv__")
def _floor_divide(g: Writer, x: Any, y: Any) -> Any:
    """The quotient rounded down."""
    return _div(g, x, y, "floor")


@form("remainder", "__mod__")
def _remainder(g: Writer, x: Any, y: Any) -> Any:
    """What is left, with the sign of the divisor."""
    dtype = g.result.dtype
    x, y = g.cast(x, dtype), g.cast(y, dtype)
    if not dtype.is_floating_point:
        return g.op("Mod", x, y, fmod_i=0)
    return g.op("Sub", x, g.op("Mul", g.op("Floor", g.op("Div", x, y)), y))


@form("pow")
def _pow(g: Writer, x: Any, y: Any) -> Any:
    """x to the power of y"""
    return g.op("Pow", g.cast(x, g.result.dtype), g.cast(y, g.result.dtype))


@form("square")
def _square(g: Writer, x: Written) -> Any:
    """x x"""
    return g.op("Mul", x, x)


@form("rsqrt")
def _rsqrt(g: Writer, x: Written) -> Any:
    """1 / sqrt(x)"""
    x = g.cast(x, g.result.dtype)
    return g.op("Div", g.scalar(1.0, g.result.dtype), g.op("Sqrt", x))


@form("log1p")
def _log1p(g: Writer, x: Written) -> Any:
    """log(1 + x)"""
    return g.op("Log", g.op("Add", g.scalar(1.0, x.dtype), x))


@form("clamp", "clip")
def _clamp(g: Writer, x: Written, low: Any = None, high: Any = None) -> Any:
    """Between two limits, of which one may be missing."""
    dtype = g.result.dtype
    x = g.cast(x, dtype)
    if any(isinstance(limit, Written) and rank(limit) for limit in (low, high)):
        made = x if low is None else g.op("Max", x, g.cast(low, dtype))
        return made if high is None else g.op("Min", made, g.cast(high, dtype))
    limits = [None if limit is None else g.cast(limit, dtype) for limit in (low, high)]
    return g.op("Clip", x, *(limits if limits[1] is not None else limits[:1]))


@form("clamp_min")
def _clamp_min(g: Writer, x: Written, low: Any) -> Any:
    """At least"""
    return _clamp(g, x, low)


@form("clamp_max")
def _clamp_max(g: Writer, x: Written, high: Any) -> Any:
    """At most"""
    return _clamp(g, x, None, high)


@form("hardtanh")
def _hardtanh(g: Writer, x: Written, low: Any, high: Any) -> Any:
    """Between two limits."""
    return _clamp(g, x, low, high)


@form("relu6")
def _relu6(g: Writer, x: Written) -> Any:
    """Between 0 and 6"""
    return _clamp(g, x, 0, 6)


@form("silu")
def _silu(g: Writer, x: Written) -> Any:
    """x sigmoid(x)"""
    return g.op("Mul", x, g.op("Sigmoid", x))


@form("mish")
def _mish(g: Writer, x: Written) -> Any:
    """x tanh(softplus(x))"""
    return g.op("Mul", x, g.op("Tanh", g.op("Softplus", x)))


@form("hardswish")
def _hardswish(g: Writer, x: Written) -> Any:
    """As an operator."""
    return g.op("HardSwish", x)


@form("hardsigmoid")
def _hardsigmoid(g: Writer, x: Written) -> Any:
    """As an operator, with torch's slope."""
    return g.op("HardSigmoid", x, alpha_f=1 / 6)


@form("softplus")
def _softplus(g: Writer, x: Written, beta: Any, threshold: Any) -> Any:
    """log(1 + e^(beta x)) / beta"""
    if beta == 1:
        return g.op("Softplus", x)
    scale = g.scalar(beta, x.dtype)
    return g.op("Div", g.op("Softplus", g.op("Mul", x, scale)), scale)


@form("log_sigmoid")
def _log_sigmoid(g: Writer, x: Written) -> Any:
    """log(sigmoid(x))"""
    return g.op("Log", g.op("Sigmoid", x))


@form("leaky_relu")
def _leaky_relu(g: Writer, x: Written, slope: Any) -> Any:
    """As an operator."""
    return g.op("LeakyRelu", x, alpha_f=float(slope))


@form("elu")
def _elu(g: Writer, x: Written, alpha: Any, scale: Any, input_scale: Any) -> Any:
    """As an operator, unless it is scaled."""
    if (scale, input_scale) != (1, 1):
        raise Uncaptured("a scaled elu has no form")
    return g.op("Elu", x, alpha_f=float(alpha))


@form("prelu")
def _prelu(g: Writer, x: Written, slope: Written) -> Any:
    """Slopes along the channels."""
    if rank(x) > 2:
        slope = g.op("Unsqueeze", slope, g.ints(*range(1, rank(x) - 1)))
    return g.op("PRelu", x, slope)


@form("gelu")
def _gelu(g: Writer, x: Written, approximate: str) -> Any:
    """By the error function, or by tanh."""

    def number(value: float) -> Written:
        return g.scalar(value, x.dtype)

    if approximate == "none":
        shifted = g.op("Add", g.op("Erf", g.op("Div", x, number(_ERF))), number(1.0))
        return g.op("Mul", g.op("Mul", x, shifted), number(0.5))
    cube = g.op("Mul", x, g.op("Mul", x, x))
    inner = g.op("Mul", number(_TANH[0]), g.op("Add", x, g.op("Mul", number(_TANH[1]), cube)))
    return g.op("Mul", g.op("Mul", number(0.5), x), g.op("Add", number(1.0), g.op("Tanh", inner)))


@form("glu")
def _glu(g: Writer, x: Written, dim: int) -> Any:
    """One half times the sigmoid of the other."""
    first, second = g.op("Split", x, axis_i=axes_of(x, dim)[0], outputs=2)
    return g.op("Mul", first, g.op("Sigmoid", second))


@form("where")
def _where(g: Writer, condition: Written, x: Any, y: Any) -> Any:
    """One or the other."""
    dtype = g.result.dtype
    return g.op("Where", g.cast(condition, torch.bool), g.cast(x, dtype), g.cast(y, dtype))


@form("masked_fill")
def _masked_fill(g: Writer, x: Written, mask: Written, value: Any) -> Any:
    """A number where the mask is true."""
    return g.op("Where", g.cast(mask, torch.bool), g.cast(value, x.dtype), x)


@form("lerp")
def _lerp(g: Writer, x: Written, y: Written, weight: Any) -> Any:
    """x + weight (y - x)"""
    return g.op("Add", x, g.op("Mul", g.cast(weight, x.dtype), g.op("Sub", y, x)))


@form("addcmul")
def _addcmul(g: Writer, x: Written, left: Written, right: Written, value: Any) -> Any:
    """x + value left right"""
    made = g.op("Mul", left, right)
    return g.op("Add", x, made if value == 1 else g.op("Mul", made, g.scalar(value, x.dtype)))


@form("to", "_to_copy", "type_as", "float", "double", "_cast_Float")
def _to(g: Writer, x: Written, *_: Any) -> Any:
    """In the type that the result has."""
    return g.cast(x, g.result.dtype)


@form("contiguous", "clone", "alias", "lift_fresh", "lift_fresh_copy", "view_as_real_copy", "positive", "lift")
def _same(g: Writer, x: Written, *_: Any) -> Any:
    """Nothing happens to the values."""
    return x


@form("fill", "zero")
def _fill(g: Writer, x: Written, value: Any = 0) -> Any:
    """One number everywhere."""
    if isinstance(value, Written) or None in known(x):
        return g.op("Expand", g.cast(value, x.dtype), g.op("Shape", x))
    return g.constant(np.full(fixed(x, *range(rank(x))), value, NUMPY[x.dtype]))


@form("copy")
def _copy(g: Writer, x: Written, new: Written, *_: Any) -> Any:
    """Other values in the same place."""
    new = g.cast(new, x.dtype)
    return new if new.sizes == x.sizes else g.op("Expand", new, g.op("Shape", x))
