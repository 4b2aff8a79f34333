"""Layers of narrow models that compute the same in less time: maps with their channels side by side."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# torch normalises channels side by side in groups of eight, and any others several times slower.
VECTOR = 8


def channels_last(x: Tensor) -> Tensor:
    """Maps in the form in which narrow convolutions are a third faster, and pooling is several times."""
    _, channels, height, width = x.shape
    x = x.contiguous(memory_format=torch.channels_last)
    # A single channel lies in memory alike in both forms; layers see only by its stride which one is meant.
    return x.as_strided(x.shape, (channels * height * width, 1, channels * width, channels))


def hasten(module: nn.Module) -> None:
    """Change a module's layers for faster ones; normalisation uses the statistics of the batch it sees."""
    torch.func.replace_all_batch_norm_modules_(module)
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.BatchNorm2d and layer.num_features % VECTOR and layer.affine:
                parent.register_module(name, NarrowNorm(layer))
        if isinstance(parent, nn.Sequential):
            _pool_first(parent)


def _pool_first(chain: nn.Sequential) -> None:
    """Let ReLU follow max pooling where it came before: the maximum is the same, from fewer values."""
    for number in range(len(chain) - 1):
        if type(chain[number]) is nn.ReLU and type(chain[number + 1]) is nn.MaxPool2d:
            chain[number], chain[number + 1] = chain[number + 1], chain[number]


class NarrowNorm(nn.Module):
    """Batch normalisation of few channels side by side, without running statistics."""

    def __init__(self, like: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = like.weight, like.bias, like.eps

    def forward(self, x: Tensor) -> Tensor:
        """The normalised map."""
        return Normalised.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-any-return, no-untyped-call]


class Normalised(torch.autograd.Function):
    """weight (x - mean) / sqrt(variance + eps) + bias for every channel of x [n, channels, height, width].

    A row of the map is one vector [width · channels], long enough for fast loops whatever the number of channels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """The normalised map."""
        rows, width = _rows(x), x.shape[-1]
        centred = rows - _means(rows, width).repeat(width)
        scale = (_means(centred * centred, width) + eps).rsqrt()
        ctx.save_for_backward(centred, scale, weight)
        ctx.shape = x.shape
        return _map(torch.addcmul(bias.repeat(width), centred, (weight * scale).repeat(width)), x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """dx = weight scale (g - mean(g) - x^ mean(g x^)) with x^ = (x - mean) scale."""
        centred, scale, weight = ctx.saved_tensors
        rows, width, count = _rows(gradient), ctx.shape[-1], gradient[:, 0].numel()
        plain, along = _means(rows, width), _means(rows * centred, width) * scale
        factor = weight * scale
        made = torch.addcmul((-factor * plain).repeat(width), rows, factor.repeat(width))
        made.addcmul_(centred, (-factor * along * scale).repeat(width))
        return _map(made, ctx.shape), count * along, count * plain, None


def _rows(x: Tensor) -> Tensor:
    """[n · height, width · channels]."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[3] * x.shape[1])


def _map(rows: Tensor, shape: torch.Size) -> Tensor:
    """What `_rows` was given."""
    return rows.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)


def _means(rows: Tensor, width: int) -> Tensor:
    """Of every channel."""
    return rows.mean(0).view(width, -1).mean(0)
