"""Models that a user might bring: with batch normalisation, attention, slopes, plain, with its classifier in front."""

from math import prod

import torch
from torch import Tensor, nn


def cnn(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two normalised convolutions, then linear layers."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * (height // 2) * (width // 2), 20),
        nn.ReLU(),
        nn.Linear(20, classes),
    )


def slopes(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Linear layers with slopes that are learnt between them."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 12), nn.PReLU(12), nn.Linear(12, classes))


class Transformer(nn.Module):
    """Rows of an image as tokens, two encoder layers of four heads."""

    def __init__(self, rows: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(width, 16)
        self.position = nn.Parameter(0.1 * torch.randn(1, rows, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        tokens = self.embed(x.flatten(1, 2)) + self.position
        logits: Tensor = self.head(self.encoder(tokens).mean(1))
        return logits


def transformer(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A classifier around nn.TransformerEncoder."""
    return Transformer(input_shape[1], input_shape[2], classes)


class HeadFirst(nn.Module):
    """A network whose classifier is the first layer that it names."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.answer = nn.Linear(12, classes)
        self.first = nn.Linear(inputs, 16)
        self.second = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.answer(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))
        return logits


def head_first(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Layers named in another order than they compute."""
    return HeadFirst(input_shape[0] * input_shape[1] * input_shape[2], classes)


def mlp(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers."""
    inputs = input_shape[0] * input_shape[1] * input_shape[2]
    hidden = [nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(12, classes))
