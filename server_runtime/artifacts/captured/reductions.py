"""Sums, means, largest entries and norms along axes."""

import math
from typing import Any

import torch

from fedwright.server_runtime.artifacts.captured.writer import Form, Writer, Written, axes_of, fixed, form, rank
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured


@form("mean")
def _mean(g: Writer, x: Written, dims: Any = None, keep: Any = False, *_: Any) -> Any:
    """The mean along axes, or of all."""
    dims, keep = _without_type(dims, keep)
    return g.op("ReduceMean", g.cast(x, g.result.dtype), **_axes(x, dims), keepdims_i=int(keep))


@form("sum")
def _sum(g: Writer, x: Written, dims: Any = None, keep: Any = False, *_: Any) -> Any:
    """The sum along axes, or of all."""
    dims, keep = _without_type(dims, keep)
    x = Written(g.cast(x, g.result.dtype).name, x.sizes)
    if dims in (None, []):
        return g.op("ReduceSum", x, keepdims_i=int(keep))
    return g.op("ReduceSum", x, g.ints(*axes_of(x, dims)), keepdims_i=int(keep))


def _without_type(dims: Any, keep: Any) -> tuple[Any, bool]:
    """Axes, and whether to keep them; of all entries only the type is said."""
    return (None, False) if isinstance(dims, torch.dtype) else (dims, bool(keep))


def _axes(x: Written, dims: Any) -> dict[str, Any]:
    return {} if dims in (None, []) else {"axes_i": axes_of(x, dims)}


def _extreme(kind: str, place: str, pair: str) -> tuple[Form, Form]:
    def along(g: Writer, x: Written, dims: Any = None, keep: bool = False) -> Any:
        """The most extreme entry along axes."""
        return g.op(kind, x, **_axes(x, dims), keepdims_i=int(keep))

    def write(g: Writer, x: Written, other: Any = None, keep: bool = False) -> Any:
        """Of two values, of all entries, or along one axis with its place."""
        if isinstance(other, Written):
            return g.op(pair, g.cast(x, g.result.dtype), g.cast(other, g.result.dtype))
        found = along(g, x, other, keep)
        if other is None:
            return found
        return found, g.op(place, x, axis_i=axes_of(x, other)[0], keepdims_i=int(keep))

    return along, write


for _kind, _names in {"Max": ("amax", "max"), "Min": ("amin", "min")}.items():
    _along, _write = _extreme(f"Reduce{_kind}", f"Arg{_kind}", _kind)
    form(_names[0])(_along)
    form(_names[1])(_write)


def _place(kind: str) -> Form:
    def write(g: Writer, x: Written, dim: Any = None, keep: bool = False) -> Any:
        """Where the most extreme entry is."""
        if dim is None:
            x, dim, keep = g.reshaped(x, -1), 0, False
            return g.op(kind, x, axis_i=0, keepdims_i=0)
        return g.op(kind, x, axis_i=axes_of(x, dim)[0], keepdims_i=int(keep))

    return write


form("argmax")(_place("ArgMax"))
form("argmin")(_place("ArgMin"))


@form("var")
def _var(g: Writer, x: Written, *given: Any) -> Any:
    """The mean square around the mean, with the correction that is asked for."""
    dims, correction, keep = _spread(given)
    return _variance(g, x, dims, correction, keep=keep)[0]


@form("std")
def _std(g: Writer, x: Written, *given: Any) -> Any:
    """The root of the variance."""
    return g.op("Sqrt", _var(g, x, *given))


@form("var_mean")
def _var_mean(g: Writer, x: Written, *given: Any) -> Any:
    """Both"""
    dims, correction, keep = _spread(given)
    return _variance(g, x, dims, correction, keep=keep)


def _spread(given: Any) -> tuple[Any, float, bool]:
    """Axes, correction and whether to keep the axes, of the ways to ask for a variance."""
    if len(given) == 1:
        return None, float(bool(given[0])), False
    dims, correction, keep = given
    return dims, 1.0 if correction is None else float(correction), bool(keep)


def _variance(g: Writer, x: Written, dims: Any, correction: float, *, keep: bool) -> tuple[Written, Written]:
    axes = axes_of(x, dims)
    centre = g.op("ReduceMean", x, axes_i=axes, keepdims_i=1)
    away = g.op("Sub", x, centre)
    found = g.op("ReduceMean", g.op("Mul", away, away), axes_i=axes, keepdims_i=int(keep))
    if correction:
        count = math.prod(fixed(x, *axes))
        found = g.op("Mul", found, g.scalar(count / (count - correction), x.dtype))
    mean = centre if keep else g.op("ReduceMean", x, axes_i=axes, keepdims_i=0)
    return found, mean


@form("linalg_vector_norm")
def _vector_norm(g: Writer, x: Written, order: Any = 2, dims: Any = None, keep: bool = False, *_: Any) -> Any:
    """The norm of this order along axes."""
    kinds = {1: "ReduceL1", 2: "ReduceL2"}
    if order in kinds:
        return g.op(kinds[order], x, **_axes(x, dims), keepdims_i=int(keep))
    if order in (math.inf, -math.inf):
        kind = "ReduceMax" if order > 0 else "ReduceMin"
        return g.op(kind, g.op("Abs", x), **_axes(x, dims), keepdims_i=int(keep))
    raise Uncaptured(f"a norm of order {order} has no form")


@form("norm")
def _norm(g: Writer, x: Written, order: Any = 2, dims: Any = None, keep: bool = False, *_: Any) -> Any:
    """The norm of this order along axes."""
    return _vector_norm(g, x, 2 if order is None else order, dims, keep)


@form("frobenius_norm")
def _frobenius_norm(g: Writer, x: Written, dims: Any = None, keep: bool = False) -> Any:
    """The root of the sum of squares."""
    return _vector_norm(g, x, 2, dims, keep)


@form("logsumexp")
def _logsumexp(g: Writer, x: Written, dims: Any, keep: bool = False) -> Any:
    """log of the sum of e^x"""
    return g.op("ReduceLogSumExp", x, axes_i=axes_of(x, dims), keepdims_i=int(keep))


@form("cumsum")
def _cumsum(g: Writer, x: Written, dim: int, *_: Any) -> Any:
    """Sums of all entries so far."""
    place = g.constant(torch.tensor(axes_of(x, dim)[0]))
    return g.op("CumSum", g.cast(x, g.result.dtype), place)


@form("all")
def _all(g: Writer, x: Written, dims: Any = None, keep: bool = False) -> Any:
    """Is none of them zero?"""
    return _truth(g, x, "ReduceMin", dims, keep=keep)


@form("any")
def _any(g: Writer, x: Written, dims: Any = None, keep: bool = False) -> Any:
    """Is one of them not zero?"""
    return _truth(g, x, "ReduceMax", dims, keep=keep)


def _truth(g: Writer, x: Written, kind: str, dims: Any, *, keep: bool) -> Any:
    if rank(x) == 0:
        return g.cast(x, torch.bool)
    numbers = g.cast(g.cast(x, torch.bool), torch.int32)
    made = g.op(kind, numbers, **_axes(x, dims), keepdims_i=int(keep))
    return g.cast(Written(made.name, None, torch.int32), torch.bool)
