"""Optimizers inside the graph against torch.optim over several steps."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import Optimizer
from helpers.graphs import Stepper, structure_of

CASES = {
    "sgd": (Optimizer(), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (Optimizer(momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (
        Optimizer(momentum=0.5, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.1),
    ),
    "adam": (Optimizer("adam"), lambda p: torch.optim.Adam(p, lr=0.1)),
    "adam-decay": (Optimizer("adam", weight_decay=0.1), lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1)),
    "adamw": (
        Optimizer("adamw", weight_decay=0.1, beta1=0.8, beta2=0.95, eps=1e-6),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    ),
}


def _module() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def _batches(steps: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    return [{"x": rng.standard_normal((5, 6)).astype(np.float32), "y": rng.integers(0, 4, 5)} for _ in range(steps)]


def _train_torch(
    module: nn.Module, make: Callable[..., Any], batches: list[dict[str, NDArray[Any]]], clip: float | None = None
) -> dict[str, np.ndarray]:
    twin = copy.deepcopy(module)
    optimizer = make(twin.parameters())
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"])).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(twin.parameters(), clip)
        optimizer.step()
    return initial_weights(twin)


def _train_graph(
    module: nn.Module, optimizer: Optimizer, batches: list[dict[str, NDArray[Any]]]
) -> dict[str, np.ndarray]:
    stepper = Stepper(build(structure_of((6,), 4, optimizer=optimizer), module), initial_weights(module))
    for batch in batches:
        stepper.step(batch, learning_rate=0.1)
    return stepper.slots


@pytest.mark.parametrize("case", CASES)
def test_six_steps_equal_torch(case: str) -> None:
    optimizer, make = CASES[case]
    module, batches = _module(), _batches(6)

    slots = _train_graph(module, optimizer, batches)

    for name, wanted in _train_torch(module, make, batches).items():
        np.testing.assert_allclose(slots[name], wanted, rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("limit", [0.05, 100.0], ids=["clips", "leaves alone"])
def test_gradient_norm_is_clipped_as_torch_does(limit: float) -> None:
    module, batches = _module(), _batches(3)

    slots = _train_graph(module, Optimizer(momentum=0.9, clip_norm=limit), batches)

    wanted = _train_torch(module, CASES["momentum"][1], batches, clip=limit)
    for name in wanted:
        np.testing.assert_allclose(slots[name], wanted[name], rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", ["sgd", "momentum", "decay", "adam"])
def test_embeddings_with_repeated_words_equal_torch(case: str) -> None:
    torch.manual_seed(5)
    optimizer, make = CASES[case]
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 4))
    rng = np.random.default_rng(6)
    batches = [{"x": rng.integers(0, 7, (5, 3)), "y": rng.integers(0, 4, 5)} for _ in range(4)]
    stepper = Stepper(build(structure_of((3,), 4, optimizer=optimizer), module), initial_weights(module))

    for batch in batches:
        stepper.step(batch, learning_rate=0.1)

    for name, wanted in _train_torch(module, make, batches).items():
        np.testing.assert_allclose(stepper.slots[name], wanted, rtol=2e-5, atol=1e-5, err_msg=name)


def test_the_learning_rate_is_an_input() -> None:
    module, (batch,) = _module(), _batches(1)
    artifact = build(structure_of((6,), 4), module)
    weights = initial_weights(module)

    moved = []
    for rate in (0.1, 0.2):
        stepper = Stepper(artifact, weights)
        stepper.step(batch, learning_rate=rate)
        moved.append(weights["0.weight"] - stepper.slots["0.weight"])

    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-6)


def test_optimizer_state_starts_at_zero_and_is_marked_as_staying() -> None:
    manifest = build(structure_of((6,), 4, optimizer=Optimizer("adam")), _module()).manifest

    states = [slot for slot in manifest.slots if slot.role == "optimizer"]
    assert {slot.name.split("/")[0] for slot in states} == {"adam_m", "adam_v", "optimizer"}
    assert len(states) == 2 * 4 + 1
