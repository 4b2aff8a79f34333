"""Layers with weights, normalisation, pooling and attention."""

import math
from typing import Any

import numpy as np
import torch

from fedwright.server_runtime.artifacts.captured.writer import (
    Writer,
    Written,
    axes_of,
    fixed,
    form,
    rank,
)
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured


@form("linear")
def _linear(g: Writer, x: Written, weight: Written, bias: Any = None) -> Any:
    """x W^T + b"""
    if rank(x) == 2 and bias is not None:
        return g.op("Gemm", x, weight, bias, alpha_f=1.0, beta_f=1.0, transB_i=1)
    turned = g.op("Transpose", weight, perm_i=[1, 0])
    made = g.op("MatMul", x, turned)
    return made if bias is None else g.op("Add", made, bias)


@form("matmul", "bmm", "mm", "mv", "__matmul__", "dot")
def _matmul(g: Writer, x: Written, y: Written, *_: Any) -> Any:
    """As an operator."""
    return g.op("MatMul", x, y)


@form("addmm")
def _addmm(g: Writer, bias: Written, x: Written, y: Written, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta b + alpha x y"""
    return g.op("Gemm", x, y, bias, alpha_f=float(alpha), beta_f=float(beta))


@form("baddbmm")
def _baddbmm(g: Writer, bias: Written, x: Written, y: Written, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta b + alpha x y, for each sample"""
    made = g.op("MatMul", x, y)
    if alpha != 1:
        made = g.op("Mul", made, g.scalar(alpha, x.dtype))
    if beta == 0:
        return made
    return g.op("Add", made, bias if beta == 1 else g.op("Mul", bias, g.scalar(beta, x.dtype)))


@form("conv1d", "conv2d", "conv3d")
def _conv(
    g: Writer,
    x: Written,
    weight: Written,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """As an operator; padding may be "same" or "valid"."""
    sides = rank(weight) - 2
    if rank(x) != rank(weight):
        raise Uncaptured("a convolution of one sample without its axis has no form")
    kernel = fixed(weight, *range(2, sides + 2))
    strides, dilations = _each(stride, sides), _each(dilation, sides)
    if isinstance(padding, str):
        totals = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        pads = [n // 2 for n in totals] + [n - n // 2 for n in totals]
    else:
        pads = _each(padding, sides) * 2
    return g.op(
        "Conv",
        *([x, weight] if bias is None else [x, weight, bias]),
        dilations_i=dilations,
        group_i=groups,
        kernel_shape_i=kernel,
        pads_i=pads,
        strides_i=strides,
    )


@form("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    g: Writer,
    x: Written,
    weight: Written,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    more: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """As an operator."""
    sides = rank(weight) - 2
    if rank(x) != rank(weight):
        raise Uncaptured("a convolution of one sample without its axis has no form")
    extra = _each(more, sides)
    attributes: dict[str, Any] = {"output_padding_i": extra} if any(extra) else {}
    return g.op(
        "ConvTranspose",
        *([x, weight] if bias is None else [x, weight, bias]),
        dilations_i=_each(dilation, sides),
        group_i=groups,
        kernel_shape_i=fixed(weight, *range(2, sides + 2)),
        pads_i=_each(padding, sides) * 2,
        strides_i=_each(stride, sides),
        **attributes,
    )


def _each(value: Any, count: int) -> list[int]:
    """One number for every axis."""
    given = [value] if isinstance(value, int) else list(value)
    return [int(n) for n in (given * count if len(given) == 1 else given)]


@form("batch_norm")
def _batch_norm(
    g: Writer,
    x: Written,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """By the batch and with new running statistics while it learns, by running statistics else."""
    channels = fixed(x, 1)
    ones, zeros = g.constant(np.ones(channels, np.float32)), g.constant(np.zeros(channels, np.float32))
    weight, bias = (ones if weight is None else weight), (zeros if bias is None else bias)
    mean, var = (zeros if mean is None else mean), (ones if var is None else var)
    made = g.op(
        "BatchNormalization",
        x,
        weight,
        bias,
        mean,
        var,
        epsilon_f=eps,
        momentum_f=1 - momentum,
        training_mode_i=int(training),
        outputs=3 if training else 1,
    )
    return made[0] if training else made


@form("instance_norm")
def _instance_norm(
    g: Writer,
    x: Written,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    by_sample: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """Each channel of each sample by itself."""
    if not by_sample or mean is not None:
        raise Uncaptured("instance normalisation with running statistics has no form")
    channels = fixed(x, 1)
    ones, zeros = g.constant(np.ones(channels, np.float32)), g.constant(np.zeros(channels, np.float32))
    given = ones if weight is None else weight, zeros if bias is None else bias
    return g.op("InstanceNormalization", x, *given, epsilon_f=eps)


@form("layer_norm")
def _layer_norm(g: Writer, x: Written, shape: Any, weight: Any, bias: Any, eps: float, *_: Any) -> Any:
    """As an operator."""
    weight = g.constant(np.ones(shape, np.float32)) if weight is None else weight
    bias = g.constant(np.zeros(shape, np.float32)) if bias is None else bias
    return g.op("LayerNormalization", x, weight, bias, epsilon_f=eps, axis_i=-len(shape))


@form("group_norm")
def _group_norm(g: Writer, x: Written, groups: int, weight: Any, bias: Any, eps: float, *_: Any) -> Any:
    """Groups of channels as channels of a normalisation of samples."""
    ones, zeros = g.constant(np.ones(groups, np.float32)), g.constant(np.zeros(groups, np.float32))
    grouped = g.op("Reshape", x, g.ints(0, groups, -1))
    made = g.op("InstanceNormalization", grouped, ones, zeros, epsilon_f=eps)
    made = g.op("Reshape", made, g.op("Shape", x))
    axes = g.ints(*range(1, rank(x) - 1))
    if weight is not None:
        made = g.op("Mul", made, g.op("Unsqueeze", weight, axes))
    return made if bias is None else g.op("Add", made, g.op("Unsqueeze", bias, axes))


@form("softmax", "_softmax")
def _softmax(g: Writer, x: Written, dim: int, *_: Any) -> Any:
    """As an operator."""
    return g.op("Softmax", g.cast(x, g.result.dtype), axis_i=dim)


@form("log_softmax", "_log_softmax")
def _log_softmax(g: Writer, x: Written, dim: int, *_: Any) -> Any:
    """As an operator."""
    return g.op("LogSoftmax", g.cast(x, g.result.dtype), axis_i=dim)


@form("dropout")
def _dropout(g: Writer, x: Written, ratio: float, training: bool) -> Any:
    """Draws while it learns."""
    if not training or ratio == 0:
        return x
    made = g.op("Dropout", x, g.scalar(ratio, torch.float32), g.scalar(True, torch.bool), outputs=2)
    return made[0]


@form("scaled_dot_product_attention")
def _attention(
    g: Writer,
    query: Written,
    key: Written,
    value: Written,
    mask: Any = None,
    ratio: float = 0.0,
    causal: bool = False,
    scale: Any = None,
    grouped: bool = False,
) -> Any:
    """softmax(Q K^T scale + mask) V, with the scale on both sides of the product."""
    if grouped:
        raise Uncaptured("grouped attention has no form")
    if scale is None:
        share = np.sqrt(np.float32(1) / np.sqrt(np.float32(fixed(query, -1)[0])))
    else:
        share = np.sqrt(np.float32(scale))
    number = g.constant(np.float32(share).reshape(()))
    order = list(range(rank(key)))
    order[-1], order[-2] = order[-2], order[-1]
    turned = g.op("Mul", g.op("Transpose", key, perm_i=order), number)
    products = g.op("MatMul", g.op("Mul", query, number), turned)
    if causal:
        rows, columns = fixed(query, -2)[0], fixed(key, -2)[0]
        mask = g.constant(np.where(np.tri(rows, columns, dtype=bool), 0, -np.inf).astype(np.float32))
    elif mask is not None and mask.dtype == torch.bool:
        mask = g.op("Where", mask, g.scalar(0.0, torch.float32), g.scalar(-math.inf, torch.float32))
    if mask is not None:
        products = g.op("Add", products, mask)
    shares = g.op("Softmax", products, axis_i=-1)
    return g.op("MatMul", _dropout(g, shares, ratio, training=True), value)


@form("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    g: Writer,
    x: Written,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    with_padding: bool = True,
    divisor: Any = None,
) -> Any:
    """As an operator."""
    sides = rank(x) - 2
    if divisor is not None or sides < 1:
        raise Uncaptured("pooling with a divisor of its own has no form")
    return g.op(
        "AveragePool",
        x,
        ceil_mode_i=int(ceil),
        count_include_pad_i=int(with_padding),
        kernel_shape_i=_each(kernel, sides),
        pads_i=_each(padding, sides) * 2,
        strides_i=_each(stride or kernel, sides),
    )


@form("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    g: Writer, x: Written, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    """As an operator."""
    sides = rank(x) - 2
    return g.op(
        "MaxPool",
        x,
        ceil_mode_i=int(ceil),
        dilations_i=_each(dilation, sides),
        kernel_shape_i=_each(kernel, sides),
        pads_i=_each(padding, sides) * 2,
        strides_i=_each(stride or kernel, sides),
    )


@form("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(g: Writer, x: Written, size: Any, scales: Any = None, *_: Any) -> Any:
    """The entry at or before each place."""
    return _resize(g, x, size, scales, "nearest", "asymmetric")


@form("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear_between(g: Writer, x: Written, size: Any, aligned: bool, scales: Any = None, *_: Any) -> Any:
    """Between the entries around a place."""
    return _resize(g, x, size, scales, "linear", "align_corners" if aligned else "half_pixel")


@form("upsample_bicubic2d")
def _cubic_between(g: Writer, x: Written, size: Any, aligned: bool, scales: Any = None, *_: Any) -> Any:
    """By cubic curves through the entries around a place."""
    return _resize(g, x, size, scales, "cubic", "align_corners" if aligned else "half_pixel")


def _resize(g: Writer, x: Written, size: Any, scales: Any, mode: str, places: str) -> Any:
    attributes: dict[str, Any] = {
        "coordinate_transformation_mode_s": places,
        "cubic_coeff_a_f": -0.75,
        "mode_s": mode,
        "nearest_mode_s": "floor",
    }
    if isinstance(scales, list) and all(isinstance(scale, float) for scale in scales):
        return g.op("Resize", x, None, g.constant(np.array([1, 1, *scales], np.float32)), **attributes)
    front = g.op("Slice", g.op("Shape", x), g.ints(0), g.ints(2), g.ints(0))
    sizes = g.op("Concat", front, g.ints(*fixed(g.result, *range(2, rank(x)))), axis_i=0)
    return g.op("Resize", x, None, None, sizes, **attributes)


@form("pixel_shuffle")
def _pixel_shuffle(g: Writer, x: Written, factor: int) -> Any:
    """Channels as pixels."""
    return g.op("DepthToSpace", x, blocksize_i=factor, mode_s="CRD")


@form("pixel_unshuffle")
def _pixel_unshuffle(g: Writer, x: Written, factor: int) -> Any:
    """Pixels as channels."""
    channels, height, width = fixed(x, 1, 2, 3)
    split = g.op("Reshape", x, g.ints(-1, channels, height // factor, factor, width // factor, factor))
    turned = g.op("Transpose", split, perm_i=[0, 1, 3, 5, 2, 4])
    return g.op("Reshape", turned, g.ints(-1, *fixed(g.result, 1, 2, 3)))


@form("_weight_norm")
def _weight_norm(g: Writer, direction: Written, length: Written, dim: int) -> Any:
    """A direction of unit length times a length."""
    axes = [axis for axis in range(rank(direction)) if axis != axes_of(direction, dim)[0]]
    norm = g.op("ReduceL2", direction, axes_i=axes, keepdims_i=1)
    return g.op("Mul", direction, g.op("Div", length, norm))


@form("mse_loss")
def _mse_loss(g: Writer, x: Written, y: Written, reduction: int = 1) -> Any:
    """Squares of differences: each, their mean or their sum."""
    away = g.op("Sub", x, g.cast(y, x.dtype))
    return _reduced(g, g.op("Mul", away, away), reduction)


@form("l1_loss")
def _l1_loss(g: Writer, x: Written, y: Written, reduction: int = 1) -> Any:
    """Sizes of differences: each, their mean or their sum."""
    return _reduced(g, g.op("Abs", g.op("Sub", x, g.cast(y, x.dtype))), reduction)


def _reduced(g: Writer, losses: Written, reduction: int) -> Any:
    if reduction == 0:
        return losses
    return g.op("ReduceMean" if reduction == 1 else "ReduceSum", losses, keepdims_i=0)
