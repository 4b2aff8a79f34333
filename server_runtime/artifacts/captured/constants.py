"""Values that are known before any data, and numbers one after the other."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from fedwright.server_runtime.artifacts.captured.writer import NUMPY, Writer, Written, fixed, form, known
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured


@form("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_memory_format")
def _zeros(g: Writer, first: Any, second: Any = None, *_: Any) -> Any:
    """Zeros; what is not filled is zero too."""
    return _filled(g, 0, first, second)


@form("ones", "ones_like", "new_ones")
def _ones(g: Writer, first: Any, second: Any = None, *_: Any) -> Any:
    """Ones"""
    return _filled(g, 1, first, second)


@form("full")
def _full(g: Writer, size: Any, value: Any, *_: Any) -> Any:
    """One number everywhere."""
    return _filled(g, value, size, None)


@form("full_like")
def _full_like(g: Writer, like: Written, value: Any, *_: Any) -> Any:
    """One number everywhere."""
    return _filled(g, value, like, None)


@form("new_full")
def _new_full(g: Writer, like: Written, size: Any, value: Any, *_: Any) -> Any:
    """One number everywhere."""
    return _filled(g, value, size, None)


def _filled(g: Writer, value: Any, first: Any, second: Any) -> Any:
    """A constant where the size is known, else made to the size of a value or of the sizes that are named."""
    dtype, sizes = g.result.dtype, known(g.result)
    if isinstance(value, Written):
        raise Uncaptured("filling with a computed number has no form")
    array: NDArray[Any] = np.array(value, NUMPY[dtype])
    whole = [size for size in sizes if size is not None]
    if len(whole) == len(sizes):
        return g.constant(np.full(whole, array))
    if isinstance(first, Written) and not isinstance(second, list):
        shape = g.op("Shape", first)
    else:
        shape = g.vector(second if isinstance(first, Written) else first)
    return g.op("ConstantOfShape", shape, value_t=numpy_helper.from_array(array.reshape(1)))


@form("arange")
def _arange(g: Writer, *given: Any) -> Any:
    """Numbers one after the other."""
    limits = []
    for item in given:
        if item is None or isinstance(item, torch.dtype | torch.layout | torch.device | bool):
            break
        limits.append(item)
    dtype = g.result.dtype
    if not any(isinstance(item, Written) for item in limits):
        return g.constant(torch.arange(*limits, dtype=dtype))
    start, end, step = [0, *limits, 1] if len(limits) == 1 else [*limits, 1][:3]
    ends = [g.op("Squeeze", item, g.ints(0)) if isinstance(item, Written) else item for item in (start, end, step)]
    made = g.op("Range", *(item if isinstance(item, Written) else g.scalar(item, torch.int64) for item in ends))
    return g.cast(Written(made.name, None, torch.int64), dtype)


@form("scalar_tensor")
def _scalar_tensor(g: Writer, value: Any, *_: Any) -> Any:
    """One number."""
    return g.scalar(value, g.result.dtype)


@form("linspace")
def _linspace(g: Writer, start: Any, end: Any, steps: int, *_: Any) -> Any:
    """Numbers between two, equally far apart."""
    return g.constant(torch.linspace(start, end, steps, dtype=g.result.dtype))


@form("eye")
def _eye(g: Writer, *_: Any) -> Any:
    """Ones on the diagonal."""
    rows, columns = fixed(g.result, 0, 1)
    return g.constant(torch.eye(rows, columns, dtype=g.result.dtype))
