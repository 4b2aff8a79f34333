"""How torch operators are written in ONNX where torch's tracing exporter cannot, or not so that they can be trained."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import symbolic_helper
from torch.onnx._internal.torchscript_exporter import symbolic_opset13, utils

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import OPSET

Symbolic = Callable[..., Any]
SYMBOLICS: dict[str, Symbolic] = {}


def symbolic(*names: str) -> Callable[[Symbolic], Symbolic]:
    """Register how these operators are written."""

    def register(function: Symbolic) -> Symbolic:
        SYMBOLICS.update(dict.fromkeys(names, function))
        return function

    return register


@contextmanager
def _no_log(verbose: bool) -> Iterator[None]:
    yield


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Own symbolics in force, no notes of the exporter, no fused attention path (it cannot be differentiated)."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    # It turns the exporter's log on, whatever it is asked for, and then a graph that fails is printed whole.
    logging, utils.setup_onnx_logging = utils.setup_onnx_logging, _no_log
    for name, function in SYMBOLICS.items():
        torch.onnx.register_custom_op_symbolic(name, function, OPSET)  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in SYMBOLICS:
            torch.onnx.unregister_custom_op_symbolic(name, OPSET)  # type: ignore[attr-defined]
        utils.setup_onnx_logging = logging
        torch.backends.mha.set_fastpath_enabled(fast)


def _whole(value: Any, name: str) -> int:
    """A number that is known while tracing."""
    return int(symbolic_helper._get_const(value, "i", name))


def _wholes(value: Any, name: str) -> list[int]:
    return list(symbolic_helper._get_const(value, "is", name))


def _constant(g: Any, value: Any) -> Any:
    return g.op("Constant", value_t=value if isinstance(value, torch.Tensor) else torch.tensor(value))


def _sizes(value: Any, operator: str) -> list[int]:
    """The sizes of a value that are known while tracing (None = free)."""
    sizes = symbolic_helper._get_tensor_sizes(value)
    if sizes is None:
        raise UnsupportedOperator(f"{operator} of unknown rank", "not exported", "")
    return list(sizes)


@symbolic("aten::index_add")
def _index_add(g: Any, data: Any, dim: Any, index: Any, source: Any, alpha: Any = None) -> Any:
    """torch's own form refuses indices that repeat, which is what edges of graphs do."""
    axis = _whole(dim, "dim")
    rank = symbolic_helper._get_tensor_rank(data)
    if rank is None or (alpha is not None and symbolic_helper._scalar(alpha) not in (None, 1)):
        raise UnsupportedOperator("index_add of unknown rank or with alpha", "not exported", "")
    column = [-1 if i == axis % rank else 1 for i in range(rank)]
    places = g.op("Reshape", index, _constant(g, column))
    spread = g.op("Expand", places, g.op("Shape", source))
    return g.op("ScatterElements", data, spread, source, axis_i=axis % rank, reduction_s="add")


def _windows(size: int, parts: int) -> list[tuple[int, int]]:
    """The windows of adaptive pooling from `size` positions to `parts`; they overlap where `parts` does not divide."""
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _averages(size: int, parts: int) -> torch.Tensor:
    """[size, parts]: column i is the mean over window i."""
    matrix = torch.zeros(size, parts)
    for i, (start, stop) in enumerate(_windows(size, parts)):
        matrix[start:stop, i] = 1.0 / (stop - start)
    return matrix


def _adaptive_sizes(x: Any, output_size: Any, operator: str) -> list[tuple[int, int]]:
    """(positions, parts) of each pooled axis."""
    parts = _wholes(output_size, "output_size")
    sizes = _sizes(x, operator)[-len(parts) :]
    if any(size is None for size in sizes):
        raise UnsupportedOperator(f"{operator} over a free size", "not exported", "")
    return list(zip(sizes, parts, strict=True))


@symbolic("aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d", "aten::adaptive_avg_pool3d")
def _adaptive_avg_pool(g: Any, x: Any, output_size: Any) -> Any:
    """Global or even windows as pooling, others as a product with the matrix of averages along each axis."""
    pairs = _adaptive_sizes(x, output_size, "adaptive average pooling")
    if all(parts == 1 for _, parts in pairs) and len(_sizes(x, "adaptive average pooling")) == len(pairs) + 2:
        return g.op("GlobalAveragePool", x)
    if all(size % parts == 0 for size, parts in pairs):
        kernel = [size // parts for size, parts in pairs]
        return g.op("AveragePool", x, kernel_shape_i=kernel, strides_i=kernel)
    rank = len(_sizes(x, "adaptive average pooling"))
    for axis, (size, parts) in enumerate(pairs, start=rank - len(pairs)):
        if size != parts:
            x = _along(g, x, _averages(size, parts), axis, rank)
    return x


def _along(g: Any, x: Any, matrix: torch.Tensor, axis: int, rank: int) -> Any:
    """x @ matrix along one axis; the last two axes need no transposing."""
    if axis == rank - 1:
        return g.op("MatMul", x, _constant(g, matrix))
    if axis == rank - 2:
        return g.op("MatMul", _constant(g, matrix.T.contiguous()), x)
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    turned = g.op("MatMul", g.op("Transpose", x, perm_i=swap), _constant(g, matrix))
    return g.op("Transpose", turned, perm_i=swap)


@symbolic("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def _adaptive_max_pool(g: Any, x: Any, output_size: Any) -> Any:
    """Even windows as pooling, others as the maximum of each window, one axis after the other; indices are not made."""
    pairs = _adaptive_sizes(x, output_size, "adaptive max pooling")
    if all(size % parts == 0 for size, parts in pairs):
        kernel = [size // parts for size, parts in pairs]
        return g.op("MaxPool", x, kernel_shape_i=kernel, strides_i=kernel), None
    rank = len(_sizes(x, "adaptive max pooling"))
    for axis, (size, parts) in enumerate(pairs, start=rank - len(pairs)):
        slices = [
            g.op("Slice", x, _constant(g, [start]), _constant(g, [stop]), _constant(g, [axis]))
            for start, stop in _windows(size, parts)
        ]
        x = g.op("Concat", *(g.op("ReduceMax", part, axes_i=[axis], keepdims_i=1) for part in slices), axis_i=axis)
    return x, None


@symbolic("aten::diff")
def _diff(g: Any, x: Any, n: Any, dim: Any, prepend: Any, append: Any) -> Any:
    """Differences of neighbours, n times, with what is set before and after."""
    axis = _whole(dim, "dim")
    ends = [value for value in (prepend, x, append) if not symbolic_helper._is_none(value)]
    if len(ends) > 1:
        x = g.op("Concat", *ends, axis_i=axis)
    for _ in range(_whole(n, "n")):
        end = torch.iinfo(torch.int64).max
        later = g.op("Slice", x, _constant(g, [1]), _constant(g, [end]), _constant(g, [axis]))
        earlier = g.op("Slice", x, _constant(g, [0]), _constant(g, [-1]), _constant(g, [axis]))
        x = g.op("Sub", later, earlier)
    return x


@symbolic("aten::repeat_interleave")
def _repeat_interleave(g: Any, x: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    """Each entry so many times; torch's own form changes the number `dim` wherever else the graph reads it."""
    sizes = symbolic_helper._get_tensor_sizes(x)
    times = symbolic_helper._maybe_get_const(repeats, "i")
    if not isinstance(times, int) or dim is None or symbolic_helper._is_none(dim) or sizes is None:
        return symbolic_opset13.repeat_interleave(g, x, repeats, dim, output_size)
    axis = _whole(dim, "dim") % len(sizes)
    rest = list(sizes)[axis + 1 :]
    if any(size is None for size in rest):
        return symbolic_opset13.repeat_interleave(g, x, repeats, dim, output_size)
    column = g.op("Unsqueeze", x, _constant(g, [axis + 1]))
    tiled = g.op("Tile", column, _constant(g, [1] * (axis + 1) + [times] + [1] * len(rest)))
    result = g.op("Reshape", tiled, _constant(g, [0] * axis + [-1] + rest))
    long = None if sizes[axis] is None else sizes[axis] * times
    result.setType(x.type().with_sizes([*list(sizes)[:axis], long, *rest]))
    return result


@symbolic("aten::rms_norm")
def _rms_norm(g: Any, x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) over the last axes, times the weight."""
    axes = [-1 - i for i in range(len(_wholes(normalized_shape, "normalized_shape")))]
    small = torch.finfo(torch.float32).eps
    if eps is not None and not symbolic_helper._is_none(eps):
        small = float(symbolic_helper._get_const(eps, "f", "eps"))
    mean = g.op("ReduceMean", g.op("Mul", x, x), axes_i=axes, keepdims_i=1)
    y = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, _constant(g, small))))
    return y if weight is None or symbolic_helper._is_none(weight) else g.op("Mul", y, weight)
