"""Networks with normalisation and few samples per channel: as close to float64 as float32 torch is."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedwright.server_runtime.artifacts.builder import build, initial_weights
from helpers.graphs import Stepper, Tensors, relative_error, structure_of

BATCH, CLASSES, SIDE, WIDTH = 4, 5, 8, 16
SEEDS = 7
# The goal is twice torch's own error; rounding is chance, so the middle of several seeds counts.
LARGEST_RATIO = 2.0


def _block(norm: Callable[[int], nn.Module], stride: int = 1, width_in: int = WIDTH) -> list[nn.Module]:
    return [nn.Conv2d(width_in, WIDTH, 3, stride, 1, bias=False), norm(WIDTH), nn.ReLU()]


def _head(side: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(WIDTH * side * side, CLASSES)]


def _convolutions(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Maps of 2x2 from the second layer on."""
    body = [*_block(norm, 2, 3), *_block(norm, 2), *(layer for _ in range(4) for layer in _block(norm))]
    return nn.Sequential(*body, *_head(2))


class Gate(nn.Module):
    """Squeeze to one value per channel, normalise over the four samples, excite."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(*_block(nn.BatchNorm2d))
        inner = WIDTH // 2
        self.squeeze = nn.Sequential(
            nn.Conv2d(WIDTH, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, WIDTH, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        answer: torch.Tensor = x + h * torch.sigmoid(self.squeeze(h.mean((2, 3), keepdim=True)))
        return answer


class Raised(nn.Module):
    """Values far from zero before a normalisation."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.norm(x + 20.0)
        return answer


class Channels(nn.Module):
    """LayerNorm over the channels of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return answer


def _groups(width: int) -> nn.Module:
    return nn.GroupNorm(4, width)


def _dense() -> nn.Module:
    body = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
    # In which order the terms of a longer product are added up, and so how exact it is, is up to either side's kernels:
    # on some processors torch's are three times as exact at 192 terms.
    return nn.Sequential(nn.AvgPool2d(SIDE // 2), nn.Flatten(), nn.Linear(12, 32), *body, nn.Linear(32, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm, 2x2 maps": lambda: _convolutions(nn.BatchNorm2d),
    "batch norm of what was pooled": lambda: nn.Sequential(
        *_block(nn.BatchNorm2d, 1, 3), *(Gate() for _ in range(4)), nn.AdaptiveAvgPool2d(1), *_head(1)
    ),
    "batch norm far from zero": lambda: _convolutions(lambda width: Raised(nn.BatchNorm2d(width))),
    "batch norm, dense": _dense,
    "group norm": lambda: _convolutions(_groups),
    "group norm far from zero": lambda: _convolutions(lambda width: Raised(_groups(width))),
    "layer norm": lambda: _convolutions(Channels),
    "layer norm far from zero": lambda: _convolutions(lambda width: Raised(Channels(width))),
}


def _torch_change(module: nn.Module, batch: Tensors, dtype: torch.dtype, rate: float, steps: int) -> Tensors:
    twin = copy.deepcopy(module).to(dtype).train()
    optimizer = torch.optim.SGD(twin.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(twin(torch.from_numpy(batch["x"]).to(dtype)), torch.from_numpy(batch["y"]))
        loss.backward()
        optimizer.step()
    before = dict(module.named_parameters())
    return {n: p.detach().double().numpy() - before[n].detach().numpy() for n, p in twin.named_parameters()}


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (0.05, 3)], ids=["one long step", "three steps"])
@pytest.mark.parametrize("name", NETWORKS)
def test_weights_change_as_exactly_as_in_torch(name: str, rate: float, steps: int) -> None:
    torch.manual_seed(0)
    artifact = build(structure_of((3, SIDE, SIDE), CLASSES), NETWORKS[name]())

    ratios = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        module, rng = NETWORKS[name](), np.random.default_rng(seed)
        x = rng.standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
        batch = {"x": x, "y": rng.integers(0, CLASSES, BATCH)}
        weights = initial_weights(module)
        wanted = _torch_change(module, batch, torch.float64, rate, steps)
        stepper = Stepper(artifact, weights)
        for _ in range(steps):
            stepper.step(batch, learning_rate=rate)
        found = {key: stepper.slots[key].astype(np.float64) - weights[key] for key in wanted}
        single = _torch_change(module, batch, torch.float32, rate, steps)
        ratios.append(relative_error(found, wanted) / relative_error(single, wanted))

    assert np.median(ratios) <= LARGEST_RATIO
