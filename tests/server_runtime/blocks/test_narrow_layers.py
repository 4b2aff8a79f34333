"""Faster layers against torch's own: the same maps and the same gradients."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedwright.server_runtime.blocks.joint_tuning import forward_of
from fedwright.server_runtime.blocks.narrow_layers import NarrowNorm, channels_last, hasten

POOLS = {
    "halves": nn.MaxPool2d(2),
    "overlapping": nn.MaxPool2d(3, 2, 1),
    "rounded up": nn.MaxPool2d(2, ceil_mode=True),
    "unlike sides": nn.MaxPool2d((3, 1), (2, 1)),
}


def maps(*shape: int) -> torch.Tensor:
    """Whole numbers, so that many maxima are found twice."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(2)).float()


def outcome(module: nn.Module, x: torch.Tensor, *, last: bool = False) -> list[torch.Tensor]:
    """What a module makes of x, and the gradients of x and of all parameters."""
    leaf = (channels_last(x) if last else x).clone(memory_format=torch.preserve_format).requires_grad_()
    made = module(leaf)
    weights = torch.linspace(-1, 1, made.numel()).reshape(made.shape)
    return [made, *torch.autograd.grad((made * weights).sum(), [leaf, *module.parameters()])]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("side", [8, 9])
def test_relu_after_pooling_is_relu_before_it(pool: str, side: int) -> None:
    module = nn.Sequential(nn.Sequential(nn.ReLU(), POOLS[pool]))
    faster = copy.deepcopy(module)
    hasten(faster)
    inner: Any = faster[0]
    assert isinstance(inner[1], nn.ReLU)
    for found, expected in zip(outcome(faster, maps(2, 3, side, 7)), outcome(module, maps(2, 3, side, 7)), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3, 4, 12])
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_narrow_normalisation_is_batch_normalisation(channels: int, last: bool) -> None:
    norm = nn.BatchNorm2d(channels, eps=1e-3)
    module = nn.Sequential(norm)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, channels))
        norm.bias.copy_(torch.linspace(-1, 1, channels))
    faster = copy.deepcopy(module)
    hasten(faster)
    assert isinstance(faster[0], NarrowNorm)
    assert [name for name, _ in faster.named_parameters()] == [name for name, _ in module.named_parameters()]
    # Far from zero, where a variance without the mean taken off first would be wrong.
    x = 100 + maps(5, channels, 7, 3) + torch.rand(5, channels, 7, 3, generator=torch.Generator().manual_seed(1))
    every = zip(outcome(faster, x, last=last), outcome(module.double(), x.double()), strict=True)
    for found, expected in every:
        torch.testing.assert_close(found, expected.float(), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("channels", [8, 16])
def test_other_normalisation_stays_torchs(channels: int) -> None:
    module = nn.Sequential(nn.BatchNorm2d(channels))
    hasten(module)
    assert type(module[0]) is nn.BatchNorm2d
    assert not module[0].track_running_stats


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_side_by_side_are_the_same_numbers(channels: int) -> None:
    x = maps(2, channels, 5, 4)
    made = channels_last(x)
    assert torch.equal(made, x)
    assert made.stride() == (20 * channels, 1, 4 * channels, channels)


def test_a_whole_model_computes_the_same() -> None:
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(36, 2)
    )
    x, labels = maps(6, 1, 9, 9), torch.tensor([0, 1, 0, 1, 1, 0])
    weights = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
    (logits,) = forward_of(module)(weights, x)
    expected = module.train()(x)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
    found = torch.autograd.grad(functional.cross_entropy(logits, labels), list(weights.values()))
    plain = torch.autograd.grad(functional.cross_entropy(expected, labels), list(module.parameters()))
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
