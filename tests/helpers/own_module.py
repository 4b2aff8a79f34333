"""Modules that a user might bring."""

import torch
from torch import nn


def make(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A sequential net: two convolutions, then linear layers."""
    channels, height, width = input_shape
    first = [nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    linear = [nn.Linear(8 * (height // 4) * (width // 4), 20), nn.ReLU(), nn.Linear(20, classes)]
    return nn.Sequential(*first, *second, *linear)


class Tangled(nn.Module):
    """A net whose forward is more than its children in a row."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        flat = x.flatten(1)
        answer: torch.Tensor = self.two(flat + self.one(flat))
        return answer


def make_tangled(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A net with a residual sum in a forward pass of its own."""
    return Tangled(_width(input_shape), classes)


class Branching(nn.Module):
    """A net whose way depends on what it is given."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, classes), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        flat = x.flatten(1)
        answer: torch.Tensor = self.one(flat) if flat.sum() > 0 else self.two(flat)
        return answer


def make_branching(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A net that cannot be traced, and so not be cut."""
    return Branching(_width(input_shape), classes)


class Parallel(Branching):
    """A net of two ways that meet in the logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        flat = x.flatten(1)
        answer: torch.Tensor = self.one(flat) + self.two(flat)
        return answer


def make_parallel(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A net without a place that one tensor passes."""
    return Parallel(_width(input_shape), classes)


class Residual(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        inner = torch.relu(self.norm(self.first(x)))
        return torch.relu(x + self.second(inner))


class Written(nn.Module):
    """A net as people write them: layers as attributes, functions between, a weight of its own."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = Residual(4)
        self.wide = nn.Conv2d(4, 6, 3, padding=1)
        self.mixing = nn.Parameter(torch.rand(12, 6))
        self.head = nn.Linear(12, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
        x = self.body(x)
        x = torch.relu(self.wide(x)).mean((2, 3))
        x = x.view(x.size(0), -1)
        x = nn.functional.dropout(nn.functional.linear(x, self.mixing), 0.5, self.training)
        answer: torch.Tensor = self.head(torch.relu(x))
        return answer


def make_written(*, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A net whose blocks only its graph shows: stem, residual block, convolution, mixing, head."""
    return Written(input_shape[0], classes)


def _width(shape: tuple[int, int, int]) -> int:
    return shape[0] * shape[1] * shape[2]
