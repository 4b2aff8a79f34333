"""What every model of the zoo shares: an encoder, a head, ordered blocks and named channel groups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.artifacts.structure import ModelSpec
from fedwright.server_runtime.blocks.slicing import Axes, Axis, AxisLike, TensorAxes

# A channel group by name, or a size that is never cut.
Width = str | int
Kind = Literal["vector", "image", "series", "tokens", "graph"]
M = TypeVar("M", bound=nn.Module)


class ZooModel(nn.Module):
    """A model whose `forward(x)` is `head(encoder(x))`."""

    encoder: nn.Module
    head: nn.Module
    _axes: dict[str, TensorAxes]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]

    def axes(self) -> Axes:
        """For each parameter and buffer, the channel group of every axis (None = fixed)."""
        return self._axes

    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The model cut into pieces that follow one another; the last one is the head."""
        return [(f"encoder.{name}", block) for name, block in self.encoder.named_children()] + [("head", self.head)]


class Layers:
    """Makes layers at the sizes of their channel groups and remembers which axis belongs to which group."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._axes: dict[nn.Module, dict[str, TensorAxes]] = {}

    def size(self, width: Width) -> int:
        """How many channels a group (or a fixed width) has."""
        return width if isinstance(width, int) else self.sizes[width]

    def conv(self, source: Width, target: Width, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
        """A convolution with bias."""
        layer = nn.Conv2d(self.size(source), self.size(target), kernel, stride, padding)
        return self.tag(layer, weight=(_axis(target), _axis(source), None, None), bias=(_axis(target),))

    def linear(self, source: Width, target: Width, *, inner: int = 1) -> nn.Linear:
        """A linear layer; `inner` entries per source channel when it reads a flattened map."""
        layer = nn.Linear(self.size(source) * inner, self.size(target))
        return self.tag(layer, weight=(_axis(target), _axis(source, inner=inner)), bias=(_axis(target),))

    def tag(self, layer: M, **axes: TensorAxes) -> M:
        """Remember the axes of a layer's own parameters and buffers."""
        self._axes[layer] = axes
        return layer

    def named(self, model: nn.Module) -> dict[str, TensorAxes]:
        """The axes of all parameters and floating-point buffers of a finished model, by name."""
        found: dict[str, TensorAxes] = {}
        for prefix, module in model.named_modules():
            for name, axes in self._axes.get(module, {}).items():
                found[f"{prefix}.{name}" if prefix else name] = axes
        return found


@dataclass(frozen=True)
class ModelEntry:
    """One line of the model list: full sizes by channel group, an example of the input, and how it is built."""

    name: str
    summary: str
    kind: Kind
    sizes: dict[str, int]
    example_shape: tuple[int, ...]
    example_classes: int
    make: Callable[[ModelSpec, Layers], ZooModel]


def finish(model: ZooModel, make: Layers) -> ZooModel:
    """Note the channel groups of a model that is now complete."""
    model._axes = make.named(model)
    return model


def assembled(make: Layers, encoder: nn.Module, head: nn.Module) -> ZooModel:
    """A model of these two parts."""
    model = ZooModel()
    model.encoder = encoder
    model.head = head
    return finish(model, make)


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
    was_training = encoder.training
    encoder.eval()
    with torch.no_grad():
        out = encoder(torch.zeros(1, *shape))
    encoder.train(was_training)
    return int(out[0, 0].numel())


def _axis(width: Width, *, inner: int = 1) -> AxisLike:
    return Axis(width, inner=inner) if isinstance(width, str) else None
