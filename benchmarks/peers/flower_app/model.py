"""The LeNet that both systems train."""

from torch import nn


def lenet() -> nn.Sequential:
    """5×5 convolutions without padding on 3×32×32 images; the same layers as the zoo's lenet-valid."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 100), nn.ReLU(), nn.Linear(100, 10)),
    )
