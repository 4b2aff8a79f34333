"""Modules that a user might bring."""

import torch
from torch import nn


def make(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A sequential net: two convolutions, then linear layers."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (height // 4) * (width // 4), 20),
        nn.ReLU(),
        nn.Linear(20, classes),
    )


class Tangled(nn.Module):
    """A net whose forward is more than its children in a row."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        flat = x.flatten(1)
        return self.two(flat + self.one(flat))


def make_tangled(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A net that cannot be cut."""
    width = 1
    for size in input_shape:
        width *= size
    return Tangled(width, classes)
