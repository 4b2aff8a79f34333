"""Low-rank adapters in any torch module: layers that are named get two thin factors beside their weights.

W + scale · up down, where up [out, rank] starts at zero and down [rank, in] is drawn; of a convolution `in` is channels
times kernel. The layers keep the names of their parameters, so weights of the same model without adapters load.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.zoo.adapters import LoraLSTM, first_factor

Targets = str | tuple[str, ...]


class Adapted(nn.Module):
    """What all adapted layers have."""

    lora_down: Tensor
    lora_up: Tensor
    lora_scale: float

    def added(self) -> Tensor:
        """scale · up down [out, in]."""
        return self.lora_scale * (self.lora_up @ self.lora_down)


class AdaptedLinear(Adapted, nn.Linear):
    """y = x W' + b + scale (x down') up'."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus the adapter's."""
        thin = functional.linear(functional.linear(x, self.lora_down), self.lora_up)
        return nn.Linear.forward(self, x) + self.lora_scale * thin


class AdaptedConv(Adapted):
    """A convolution with `rank` filters and one of single points beside it; of grouped ones the product is added."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus the adapter's."""
        layer: Any = self
        if layer.groups > 1 or layer.padding_mode != "zeros":
            return layer._conv_forward(x, layer.weight + self.added().reshape(layer.weight.shape), layer.bias)  # type: ignore[no-any-return]
        convolve = functional.conv1d if layer.weight.ndim == 3 else functional.conv2d
        down = self.lora_down.reshape(-1, *layer.weight.shape[1:])
        thin = convolve(x, down, None, layer.stride, layer.padding, layer.dilation)
        up = self.lora_up.reshape(*self.lora_up.shape, *(1,) * (layer.weight.ndim - 2))
        return layer._conv_forward(x, layer.weight, layer.bias) + self.lora_scale * convolve(thin, up)  # type: ignore[no-any-return]


class AdaptedConv1d(AdaptedConv, nn.Conv1d):
    """Over time."""


class AdaptedConv2d(AdaptedConv, nn.Conv2d):
    """Over images."""


class AdaptedAttention(nn.MultiheadAttention):
    """Attention that reads its projections with what adapters add: to query, key and value, and to the output."""

    in_proj_lora_down: Tensor
    in_proj_lora_up: Tensor
    in_proj_scale: float
    # What the encoder layers of torch read around a layer's own forward is the weights alone.
    _qkv_same_embed_dim: bool

    def forward(  # noqa: PLR0913  (as torch calls it)
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's, without its shortcuts."""
        if self.batch_first:
            query, key, value = (rows.transpose(0, 1) for rows in (query, key, value))
        inner: Tensor = self.in_proj_weight
        out: Tensor = self.out_proj.weight
        if hasattr(self, "in_proj_lora_up"):
            inner = inner + self.in_proj_scale * _blocks(self.in_proj_lora_up, self.in_proj_lora_down)
        if isinstance(self.out_proj, AdaptedLinear):
            out = out + self.out_proj.added()
        found, weights = functional.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            inner,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            out,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (found.transpose(0, 1) if self.batch_first else found), weights


def _blocks(up: Tensor, down: Tensor) -> Tensor:
    """up_b down_b of query, key and value, one below the other."""
    rank = up.shape[1]
    made = up.reshape(3, -1, rank) @ down.reshape(3, rank, -1)
    return made.reshape(-1, down.shape[1])


def adapt(module: nn.Module, targets: Targets, *, rank: int, scale: float = 1.0) -> None:
    """Give the layers that `targets` names adapters of a rank; ConfigError where it names none, or one that has none.

    targets: layers by name (the whole name, or its end behind a dot), or one regular expression of whole names.
    """
    found = [(name, layer) for name, layer in module.named_modules() if name and is_target(name, targets)]
    chosen = [(name, layer) for name, layer in found if type(layer) in _ADAPT or type(layer) in _ATTENTION]
    if not chosen:
        what = f"{found[0][0]} is a {type(found[0][1]).__name__}" if found else "no layer has such a name"
        known = [name for name, layer in module.named_modules() if type(layer) in _ADAPT]
        raise ConfigError(
            f"targets = {targets!r} finds nothing to adapt ({what}); name linear, convolution, attention or LSTM"
            f" layers,"
            f" such as {', '.join(known[:5])}"
        )
    owners = {f"{name}.out_proj": layer for name, layer in module.named_modules() if type(layer) in _ATTENTION}
    for name, layer in chosen:
        if type(layer) in _ADAPT:
            _ADAPT[type(layer)](layer, rank, scale)
        if name in owners:
            owners[name].__class__ = AdaptedAttention
        if type(layer) in _ATTENTION:
            _adapt_attention(layer, rank, scale)
        layer.register_forward_pre_hook(_keep_off_shortcuts)


def is_target(name: str, targets: Targets) -> bool:
    """Whether a layer is meant, by the rules that PEFT has."""
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _keep_off_shortcuts(layer: nn.Module, inputs: Any) -> None:
    """Encoder layers of torch compute around their parts' own forward unless one of them has a hook."""


def _adapt_plain(kind: type[nn.Module]) -> Callable[[Any, int, float], None]:
    def adapt_layer(layer: Any, rank: int, scale: float) -> None:
        rows = layer.weight.shape[0]
        layer.lora_down = first_factor(rank, layer.weight[0].numel())
        layer.lora_up = nn.Parameter(torch.zeros(rows, rank))
        layer.lora_scale = scale
        layer.__class__ = kind

    return adapt_layer


def _adapt_attention(layer: Any, rank: int, scale: float) -> None:
    """Query, key, value and output, each with factors of its own."""
    if not layer._qkv_same_embed_dim:
        raise ConfigError("attention whose keys or values have a width of their own has no adapters; name other layers")
    width = layer.embed_dim
    layer.in_proj_lora_down = first_factor(3 * rank, width, parts=3)
    layer.in_proj_lora_up = nn.Parameter(torch.zeros(3 * width, rank))
    layer.in_proj_scale = scale
    if not isinstance(layer.out_proj, AdaptedLinear):
        _adapt_plain(AdaptedLinear)(layer.out_proj, rank, scale)
    layer.__class__ = AdaptedAttention


def _adapt_lstm(layer: Any, rank: int, scale: float) -> None:
    if layer.num_layers > 1 or layer.bidirectional or layer.proj_size or not layer.bias or scale != 1:
        raise ConfigError(
            "LSTMs have adapters if they have one layer and one direction, without alpha; name other layers"
        )
    if not layer.batch_first:
        raise ConfigError("only LSTMs with batch_first have adapters; name other layers")
    LoraLSTM.add_factors(layer, rank)
    layer.__class__ = LoraLSTM


_ADAPT: dict[type[nn.Module], Callable[[Any, int, float], None]] = {
    nn.Linear: _adapt_plain(AdaptedLinear),
    nn.modules.linear.NonDynamicallyQuantizableLinear: _adapt_plain(AdaptedLinear),
    nn.Conv1d: _adapt_plain(AdaptedConv1d),
    nn.Conv2d: _adapt_plain(AdaptedConv2d),
    nn.LSTM: _adapt_lstm,
}
_ATTENTION = (nn.MultiheadAttention, AdaptedAttention)


def linear_layers(module: nn.Module, *, but: Sequence[str] = ()) -> tuple[str, ...]:
    """All linear layers by name: what PEFT calls all-linear, without the classifier."""
    return tuple(name for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and name not in but)
