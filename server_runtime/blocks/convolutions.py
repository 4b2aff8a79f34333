"""Convolutions of single points with a stride: the same sums without one, because torch's own damage memory.

Known for torch up to 2.13 with oneDNN 3.12 (uxlfoundation/oneDNN#6035), measured on x86-64. The gradient of the weight
is computed from a copy of every stride-th point. The room for the copy is counted in the layer's input channels, but
places in it are counted in whole vectors: 8 channels with AVX2, 16 with AVX-512. All of these together do the damage:

- a kernel of 1 x 1 with a stride above 1 along a side, no padding, one group, and sides that their strides divide,
- fewer input channels than a vector has, and a batch of more than one,
- channels side by side: `channels_last`, an input permuted to it, or a weight that lies so.

One thread then writes up to 0.6 MB past the room (seen with AVX2 from maps of 8 x 8 on, with AVX-512 from 64 x 64 on).
Several threads also overwrite one another's copies: gradients are wrong, or the threads wait for ever. A transposed
convolution does the same with its output channels when output_padding is stride - 1.

Taking every stride-th point first, and then convolving without a stride, is the same sum over the same numbers and
never uses that copy. It is done for every format and width, so that no result depends on the processor.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.library import Library

_ONE, _NONE = (1, 1), (0, 0)


@cache
def use_safe_convolutions() -> Library:
    """From now on strided convolutions of single points are computed without a stride on this process's CPU.

    That holds for all modules and functions that convolve, a user's own too; exported graphs stay as they were.
    """
    library = Library("aten", "IMPL")
    kernels = {"conv2d": _conv2d, "conv2d.padding": _conv2d, "conv_transpose2d.input": _conv_transpose2d}
    for name, kernel in kernels.items():
        library.impl(name, kernel, "AutogradCPU")
    return library


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = _ONE,
    padding: Sequence[int] | str = _NONE,
    *rest: Any,
) -> Tensor:
    named = isinstance(padding, str)
    # Any stride with "same" is an error that torch itself should raise.
    padded = padding != "valid" if named else any(padding)
    if _skips_points(weight, stride) and not padded:
        x, stride = x[..., :: stride[0], :: stride[-1]], _ONE
    plain = torch.ops.aten.conv2d.padding if named else torch.ops.aten.conv2d.default
    return cast(Tensor, plain.decompose(x, weight, bias, stride, padding, *rest))


def _conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = _ONE,
    padding: Sequence[int] = _NONE,
    *rest: Any,
) -> Tensor:
    plain = torch.ops.aten.conv_transpose2d.input.decompose
    more = rest[0] if rest else _NONE
    too_much = any(extra >= step for extra, step in zip(more, stride, strict=False))
    if not _skips_points(weight, stride) or any(padding) or too_much:
        return cast(Tensor, plain(x, weight, bias, stride, padding, *rest))
    points = cast(Tensor, plain(x, weight, None, _ONE, _NONE, _NONE, *rest[1:]))
    height, width = points.shape[-2:]
    down, right = stride[0], stride[-1]
    sides = (height - 1) * down + 1 + more[0], (width - 1) * right + 1 + more[-1]
    made = points.new_zeros(*points.shape[:-2], *sides)
    made[..., ::down, ::right] = points
    return made if bias is None else made + bias[:, None, None]


def _skips_points(weight: Tensor, stride: Sequence[int]) -> bool:
    # One convolution must stay one in a graph for devices.
    exporting = torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
    return max(stride) > 1 and weight.shape[2:] == _ONE and not exporting
