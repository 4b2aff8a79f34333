"""What every model of the zoo shares: an encoder, a head, ordered blocks and named channel groups."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axes, Axis, AxisLike, TensorAxes
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.adapters import GATES, LoraLinear, LoraLSTM

# A channel group by name, or a size that is never cut.
Width = str | int
Kind = Literal["vector", "image", "series", "tokens", "graph"]
M = TypeVar("M", bound=nn.Module)

# The channel group of adapters' inner width.
RANK = "rank"
# Normalisation groups are as many of these as divide the layer's size.
NORM_GROUPS = 8


@dataclass(frozen=True)
class Input:
    """One input of `forward`; -1 is a free dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["float32", "int64"] = "float32"


class ZooModel(nn.Module):
    """A model whose `forward(x)` is `head(encoder(x))`."""

    encoder: nn.Module
    head: nn.Module
    _axes: dict[str, TensorAxes]
    _inputs: tuple[Input, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]

    def inputs(self) -> tuple[Input, ...]:
        """The inputs of `forward` in order."""
        return self._inputs

    def axes(self) -> Axes:
        """For each parameter and buffer, the channel group of every axis (None = fixed)."""
        return self._axes

    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The model cut into pieces that follow one another; the last one is the head."""
        return [(f"encoder.{name}", block) for name, block in self.encoder.named_children()] + [("head", self.head)]


class Layers:
    """Makes layers at the sizes of their channel groups and remembers which axis belongs to which group."""

    def __init__(self, sizes: Mapping[str, int], *, rank: str | None = None) -> None:
        """rank: the channel group of the adapters' inner width; None makes no adapters."""
        self.sizes = sizes
        self._rank = rank
        self._axes: dict[nn.Module, dict[str, TensorAxes]] = {}

    def size(self, width: Width) -> int:
        """How many channels a group (or a fixed width) has."""
        return width if isinstance(width, int) else self.sizes[width]

    def conv(self, source: Width, target: Width, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
        """A convolution with bias."""
        layer = nn.Conv2d(self.size(source), self.size(target), kernel, stride, padding)
        return self.tag(layer, weight=(axis(target), axis(source), None, None), bias=(axis(target),))

    def bare_conv(self, source: Width, target: Width, kernel: int, *, stride: int = 1) -> nn.Conv2d:
        """A convolution that keeps the size of the map (but for its stride) and has no bias: a norm layer follows."""
        layer = nn.Conv2d(self.size(source), self.size(target), kernel, stride, kernel // 2, bias=False)
        return self.tag(layer, weight=(axis(target), axis(source), None, None))

    def depthwise(self, width: Width, kernel: int, *, stride: int = 1) -> nn.Conv2d:
        """One filter per channel, no bias."""
        size = self.size(width)
        layer = nn.Conv2d(size, size, kernel, stride, kernel // 2, groups=size, bias=False)
        return self.tag(layer, weight=(axis(width), None, None, None))

    def conv1d(self, source: Width, target: Width, kernel: int) -> nn.Conv1d:
        """A convolution over time that keeps the length."""
        layer = nn.Conv1d(self.size(source), self.size(target), kernel, padding=kernel // 2)
        return self.tag(layer, weight=(axis(target), axis(source), None), bias=(axis(target),))

    def linear(self, source: Width, target: Width, *, inner: int = 1, adapt: bool = True) -> nn.Linear:
        """A linear layer; `inner` entries per source channel when it reads a flattened map."""
        return self.linear_between(
            axis(source, inner=inner), axis(target), self.size(source) * inner, self.size(target), adapt=adapt
        )

    def linear_between(
        self, source: AxisLike, target: AxisLike, inputs: int, outputs: int, *, adapt: bool = True
    ) -> nn.Linear:
        """A linear layer between axes of any form; with a low-rank adapter where adapters are wanted."""
        if self._rank is None or not adapt:
            return self.tag(nn.Linear(inputs, outputs), weight=(target, source), bias=(target,))
        layer = LoraLinear(inputs, outputs, self.sizes[self._rank])
        rank = Axis(self._rank)
        return self.tag(
            layer, weight=(target, source), bias=(target,), lora_down=(rank, source), lora_up=(target, rank)
        )

    def lstm(self, inputs: int, width: str) -> nn.LSTM:
        """One LSTM layer over [n, steps, inputs]; with low-rank adapters of each gate where adapters are wanted."""
        hidden, gates = axis(width), Axis(width, outer=GATES)
        axes = {"weight_ih_l0": (gates, None), "weight_hh_l0": (gates, hidden)}
        biases = {"bias_ih_l0": (gates,), "bias_hh_l0": (gates,)}
        if self._rank is None:
            return self.tag(nn.LSTM(inputs, self.size(width), batch_first=True), **axes, **biases)
        rank, ranks = Axis(self._rank), Axis(self._rank, outer=GATES)
        factors = {"ih_l0_lora_down": (ranks, None), "hh_l0_lora_down": (ranks, hidden)}
        factors |= {name: (gates, rank) for name in ("ih_l0_lora_up", "hh_l0_lora_up")}
        return self.tag(LoraLSTM(inputs, self.size(width), self.size(self._rank)), **axes, **biases, **factors)

    def batch_norm(self, width: Width) -> nn.BatchNorm2d:
        """Batch normalisation of a map."""
        here = (axis(width),)
        layer = nn.BatchNorm2d(self.size(width))
        return self.tag(layer, weight=here, bias=here, running_mean=here, running_var=here, num_batches_tracked=())

    def group_norm(self, width: Width) -> nn.GroupNorm:
        """Group normalisation with up to eight groups, as many as divide the size."""
        size = self.size(width)
        return self.tag(nn.GroupNorm(gcd(NORM_GROUPS, size), size), weight=(axis(width),), bias=(axis(width),))

    def layer_norm(self, width: Width) -> nn.LayerNorm:
        """Layer normalisation over the last axis."""
        return self.tag(nn.LayerNorm(self.size(width)), weight=(axis(width),), bias=(axis(width),))

    def tag(self, layer: M, **axes: TensorAxes) -> M:
        """Remember the axes of a layer's own parameters and buffers."""
        self._axes[layer] = axes
        return layer

    def named(self, model: nn.Module) -> dict[str, TensorAxes]:
        """The axes of all parameters and buffers of a finished model, by name."""
        found: dict[str, TensorAxes] = {}
        for prefix, module in model.named_modules():
            for name, axes in self._axes.get(module, {}).items():
                found[f"{prefix}.{name}" if prefix else name] = axes
        return found


@dataclass(frozen=True)
class ModelEntry:
    """How one model of `model_names` is made.

    sizes: full size by channel group. uncut: groups that a width leaves alone (a depth, a rank).
    example_shape, example_classes: an input it is meant for.
    """

    name: str
    kind: Kind
    sizes: dict[str, int]
    example_shape: tuple[int, ...]
    example_classes: int
    make: Callable[[ModelSpec, Layers], ZooModel]
    uncut: tuple[str, ...] = ()
    rank: str | None = None

    def with_adapters(self, name: str, *, rank: int) -> "ModelEntry":
        """The same with low-rank adapters, whose rank a width leaves alone."""
        return replace(self, name=name, sizes=self.sizes | {RANK: rank}, uncut=(*self.uncut, RANK), rank=RANK)


def build(entry: ModelEntry, spec: ModelSpec, sizes: Mapping[str, int]) -> ZooModel:
    """The entry's model at these sizes, with its channel groups and inputs noted."""
    make = Layers(sizes, rank=entry.rank)
    model = entry.make(spec, make)
    model._axes = make.named(model)
    model._inputs = model_inputs(entry.kind, spec.input_shape)
    return model


def model_inputs(kind: Kind, shape: tuple[int, ...]) -> tuple[Input, ...]:
    """What `forward` reads: one batch of examples, and the edge list of a graph."""
    first = Input("x", (-1, *shape), "int64" if kind == "tokens" else "float32")
    return (first, Input("edges", (-1, 2), "int64")) if kind == "graph" else (first,)


def assembled(encoder: nn.Module, head: nn.Module) -> ZooModel:
    """A model of these two parts."""
    model = ZooModel()
    model.encoder = encoder
    model.head = head
    return model


def chain(*named: tuple[str, nn.Module]) -> nn.Sequential:
    """A sequence of named modules."""
    return nn.Sequential(OrderedDict(named))


def image_shape(spec: ModelSpec, least: int) -> tuple[int, int, int]:
    """(channels, height, width) of the input, or an error when it is no image or smaller than `least` pixels."""
    if len(spec.input_shape) != 3 or min(spec.input_shape[1:]) < least:
        raise ConfigError(
            f"model {spec.model} reads images of (channels, height, width) with at least {least} pixels a side "
            f"but the input shape is {spec.input_shape}; choose another model or reshape the data"
        )
    channels, height, width = spec.input_shape
    return channels, height, width


def flat_size(encoder: nn.Module, shape: tuple[int, ...]) -> int:
    """Positions per channel after a convolutional encoder, found by running it once."""
    encoder.eval()
    with torch.no_grad():
        out = encoder(torch.zeros(1, *shape))
    encoder.train()
    return prod(out.shape[2:])


def axis(width: Width, *, inner: int = 1) -> AxisLike:
    """The axis of a group; None for a fixed width."""
    return Axis(width, inner=inner) if isinstance(width, str) else None
