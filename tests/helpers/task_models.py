"""Models for tasks other than single classes, as users write them."""

from typing import Any

import torch
from torch import nn


def make_numbers(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network from any shape to numbers."""
    size = int(torch.tensor(input_shape).prod())
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, classes))


def make_segmenter(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A class at every pixel: [samples, classes, height, width]."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, classes, 3, padding=1)
    )


class Reader(nn.Module):
    """The next byte at every place."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = (
            nn.Embedding(classes, 8),
            nn.GRU(8, 16, batch_first=True),
            nn.Linear(16, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[samples, places, classes]"""
        states: Any = self.rnn(self.embed(x))[0]
        answer: torch.Tensor = self.out(states)
        return answer


def make_reader(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A language model of bytes."""
    return Reader(classes)


def make_normed(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network with normalisation from images to numbers."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, classes),
    )


def make_deep(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Four wide layers and a small one."""
    wide = [layer for _ in range(4) for layer in (nn.Linear(input_shape[0], 64), nn.Tanh())]
    return nn.Sequential(*wide, nn.Linear(64, classes))
