"""Functions of single entries, sums of products and distances that the tracing exporter does not know."""

import math
from typing import Any

import torch

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.symbolics.registry import (
    constant,
    is_none,
    number,
    rank_of,
    symbolic,
    whole,
)


@symbolic("aten::exp2")
def _exp2(g: Any, x: Any) -> Any:
    """e^(x ln 2)"""
    return g.op("Exp", g.op("Mul", x, constant(g, math.log(2))))


@symbolic("aten::expm1")
def _expm1(g: Any, x: Any) -> Any:
    """2 sinh(x/2) e^(x/2), which keeps what e^x - 1 loses near zero"""
    half = g.op("Mul", x, constant(g, 0.5))
    return g.op("Mul", g.op("Mul", g.op("Sinh", half), g.op("Exp", half)), constant(g, 2.0))


@symbolic("aten::sinh")
def _sinh(g: Any, x: Any) -> Any:
    """As an operator."""
    return g.op("Sinh", x)


@symbolic("aten::cosh")
def _cosh(g: Any, x: Any) -> Any:
    """As an operator."""
    return g.op("Cosh", x)


@symbolic("aten::asinh")
def _asinh(g: Any, x: Any) -> Any:
    """As an operator."""
    return g.op("Asinh", x)


@symbolic("aten::acosh")
def _acosh(g: Any, x: Any) -> Any:
    """As an operator."""
    return g.op("Acosh", x)


@symbolic("aten::atanh")
def _atanh(g: Any, x: Any) -> Any:
    """As an operator."""
    return g.op("Atanh", x)


@symbolic("aten::erfc")
def _erfc(g: Any, x: Any) -> Any:
    """1 - erf(x)"""
    return g.op("Sub", constant(g, 1.0), g.op("Erf", x))


@symbolic("aten::hypot")
def _hypot(g: Any, x: Any, y: Any) -> Any:
    """sqrt(x^2 + y^2)"""
    return g.op("Sqrt", g.op("Add", g.op("Mul", x, x), g.op("Mul", y, y)))


@symbolic("aten::addcdiv")
def _addcdiv(g: Any, x: Any, left: Any, right: Any, value: Any) -> Any:
    """x + value left / right"""
    return g.op("Add", x, g.op("Mul", g.op("Div", left, right), constant(g, number(value, "value"))))


@symbolic("aten::trunc")
def _trunc(g: Any, x: Any) -> Any:
    """Towards zero"""
    return g.op("Mul", g.op("Sign", x), g.op("Floor", g.op("Abs", x)))


@symbolic("aten::frac")
def _frac(g: Any, x: Any) -> Any:
    """x - trunc(x)"""
    return g.op("Sub", x, _trunc(g, x))


@symbolic("aten::threshold")
def _threshold(g: Any, x: Any, threshold: Any, value: Any) -> Any:
    """x above the threshold, else the value"""
    above = g.op("Greater", x, constant(g, number(threshold, "threshold")))
    return g.op("Where", above, x, constant(g, number(value, "value")))


@symbolic("aten::celu")
def _celu(g: Any, x: Any, alpha: Any) -> Any:
    """alpha elu(x / alpha) below zero, x above"""
    scale = constant(g, number(alpha, "alpha"))
    return g.op("Mul", scale, g.op("Elu", g.op("Div", x, scale), alpha_f=1.0))


@symbolic("aten::nan_to_num")
def _nan_to_num(g: Any, x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    """Numbers for what is none: the bounds of float32 for infinities unless told"""
    limits = torch.finfo(torch.float32)
    low = limits.min if is_none(neginf) else number(neginf, "neginf")
    high = limits.max if is_none(posinf) else number(posinf, "posinf")
    zero = constant(g, 0.0 if is_none(nan) else number(nan, "nan"))
    known = g.op("Where", g.op("IsNaN", x), zero, x)
    known = g.op("Where", g.op("Greater", known, constant(g, limits.max)), constant(g, high), known)
    return g.op("Where", g.op("Less", known, constant(g, limits.min)), constant(g, low), known)


@symbolic("aten::mT", "aten::adjoint")
def _last_two_swapped(g: Any, x: Any) -> Any:
    """The last two axes changed."""
    rank = rank_of(x, "mT")
    return g.op("Transpose", x, perm_i=[*range(rank - 2), rank - 1, rank - 2])


@symbolic("aten::cdist")
def _cdist(g: Any, x: Any, y: Any, p: Any, compute_mode: Any = None) -> Any:
    """Distances of all pairs of rows; the gradient of a distance of zero is zero."""
    if number(p, "p") != 2.0:
        raise UnsupportedOperator("cdist with p other than 2", "not exported", "")
    away = g.op("Sub", g.op("Unsqueeze", x, constant(g, [-2])), g.op("Unsqueeze", y, constant(g, [-3])))
    return g.op("ReduceL2", away, axes_i=[-1], keepdims_i=0)


@symbolic("aten::logcumsumexp")
def _logcumsumexp(g: Any, x: Any, dim: Any) -> Any:
    """log of the cumulative sums of e^x, less the largest x of the axis first"""
    axis = whole(dim, "dim")
    largest = g.op("ReduceMax", x, axes_i=[axis], keepdims_i=1)
    sums = g.op("CumSum", g.op("Exp", g.op("Sub", x, largest)), constant(g, axis))
    return g.op("Add", g.op("Log", sums), largest)
