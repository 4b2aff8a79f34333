"""Layers of torch.nn that the tracing exporter has no form for, or none that trains."""

from typing import Any

import torch

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.symbolics.registry import (
    DOMAIN,
    STOP,
    constant,
    is_none,
    known_sizes,
    number,
    rank_of,
    symbolic,
    whole,
    wholes,
)


@symbolic("aten::rms_norm")
def _rms_norm(g: Any, x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) over the last axes, times the weight."""
    axes = [-1 - i for i in range(len(wholes(normalized_shape, "normalized_shape")))]
    small = torch.finfo(torch.float32).eps
    if not is_none(eps):
        small = number(eps, "eps")
    mean = g.op("ReduceMean", g.op("Mul", x, x), axes_i=axes, keepdims_i=1)
    y = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, constant(g, small))))
    return y if is_none(weight) else g.op("Mul", y, weight)


@symbolic("aten::detach")
def _detach(g: Any, x: Any) -> Any:
    """A mark that no gradient goes through; the exporter itself leaves the cut out, and gradients come out wrong."""
    made = g.op(f"{DOMAIN}::{STOP}", x)
    return made.setType(x.type()) if isinstance(made, torch._C.Value) else made


@symbolic("aten::embedding")
def _embedding(g: Any, weight: Any, indices: Any, padding_idx: Any, scale_grad: Any, sparse: Any) -> Any:
    """Rows of a table; no gradient reaches the row of the padding."""
    if whole(scale_grad, "scale_grad_by_freq"):
        raise UnsupportedOperator("embedding with scale_grad_by_freq", "not exported", "")
    found, padding = g.op("Gather", weight, indices), whole(padding_idx, "padding_idx")
    if padding < 0:
        return found
    is_padding = g.op("Unsqueeze", g.op("Equal", indices, constant(g, padding)), constant(g, [-1]))
    return g.op("Where", is_padding, g.op(f"{DOMAIN}::{STOP}", found), found)


@symbolic("aten::batch_norm")
def _batch_norm(g: Any, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """Layers that keep no statistics get ones that nobody reads."""
    mean, _, _, _, eps, *_ = rest
    if not is_none(mean):
        from torch.onnx._internal.torchscript_exporter import symbolic_opset14

        return symbolic_opset14.batch_norm(g, x, weight, bias, *rest)
    channels = known_sizes(x, [1], "batch normalisation")[0]
    ones, zeros = constant(g, torch.ones(channels)), constant(g, torch.zeros(channels))
    weight, bias = (ones if is_none(weight) else weight), (zeros if is_none(bias) else bias)
    epsilon = number(eps, "eps")
    made = g.op("BatchNormalization", x, weight, bias, zeros, ones, epsilon_f=epsilon, training_mode_i=1, outputs=3)
    return made[0]


@symbolic("aten::bilinear")
def _bilinear(g: Any, left: Any, right: Any, weight: Any, bias: Any) -> Any:
    """y_k = left W_k right + b_k"""
    letters = "abcdefgh"[: rank_of(left, "bilinear") - 1]
    made = g.op("Einsum", left, weight, equation_s=f"{letters}i,kij->{letters}kj")
    made = g.op("Einsum", made, right, equation_s=f"{letters}kj,{letters}j->{letters}k")
    return made if is_none(bias) else g.op("Add", made, bias)
