"""Rounds of methods whose server writes the devices' weights beside the same rounds written with torch."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedwright.server_runtime.methods.base import Method
from helpers.by_torch import DATA, DEVICES, ROUNDS, Rows, Weights, begin, logits, run, trained

LAYERS, SERVER_RATE, MOMENTUM, DECAY, CLIP = 3, 0.05, 0.5, 0.01, 0.4
SETTINGS = {
    "hidden": 16,
    "layers": LAYERS,
    "server_rate": SERVER_RATE,
    "momentum": MOMENTUM,
    "weight_decay": DECAY,
    "clip_norm": CLIP,
}
MLP = {name: tuple(value.shape) for name, value in begin().items()}
# Of rank 1, in the order in which they are written.
ADAPTERS = {
    "encoder.fc1.1.lora_down": (1, 64),
    "encoder.fc1.1.lora_up": (128, 1),
    "encoder.fc2.0.lora_down": (1, 128),
    "encoder.fc2.0.lora_up": (64, 1),
}
Shapes = Mapping[str, tuple[int, ...]]


def merged(rho: Weights) -> Weights:
    """The base with W + B A in the adapted layers."""
    base, layers = begin(), ("encoder.fc1.1", "encoder.fc2.0")
    return base | {f"{n}.weight": base[f"{n}.weight"] + rho[f"{n}.lora_up"] @ rho[f"{n}.lora_down"] for n in layers}


def written(phi: Weights, row: Tensor, shapes: Shapes) -> Weights:
    """Linear layers with ReLUs between them, then one linear head for all tensors."""
    for layer in range(LAYERS):
        read = functional.relu(row) if layer else row
        row = functional.linear(read, phi[f"trunk{layer}.weight"], phi[f"trunk{layer}.bias"])
    flat = functional.linear(row, phi["head.weight"], phi["head.bias"])
    parts = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def row_of(data: Rows) -> Tensor:
    """r / ||r|| of the classes in the data."""
    row = torch.zeros(10, dtype=torch.float64)
    row[data[1].unique()] = 1
    return functional.normalize(row, dim=0)


def pull(phi: Weights, row: Tensor, away: Weights, shapes: Shapes) -> Weights:
    """J' (ω − ω'): the gradient of 1/2 ||ω − ω'||² in φ."""
    leaves = {name: value.clone().requires_grad_() for name, value in phi.items()}
    own = written(leaves, row, shapes)
    product = torch.stack([(own[name] * away[name]).sum() for name in shapes]).sum()
    return dict(zip(phi, torch.autograd.grad(product, list(leaves.values())), strict=True))


def step(phi: Weights, speed: Weights, pulls: list[Weights]) -> tuple[Weights, Weights]:
    """SGD along the mean: clipped, then decay, then momentum, as torch has them."""
    grad = {name: torch.stack([one[name] for one in pulls]).mean(0) for name in phi}
    norm = math.sqrt(sum(float((value**2).sum()) for value in grad.values()))
    grad = {name: value * min(1.0, CLIP / norm) + DECAY * phi[name] for name, value in grad.items()}
    speed = {name: MOMENTUM * speed[name] + value for name, value in grad.items()}
    return {name: value - SERVER_RATE * speed[name] for name, value in phi.items()}, speed


def hypernet_of(method: Method) -> Weights:
    """The hypernetwork's own weights, and its momentum below `momentum/`."""
    state = {n.removeprefix("hypernet/"): v for n, v in method.state().tensors.items() if n.startswith("hypernet/")}
    return {name: torch.from_numpy(np.array(value)).double() for name, value in state.items()}


def seen_in(folder: Path, name: str, settings: Mapping[str, Any]) -> tuple[Method, list[Weights]]:
    """The method, and its hypernetwork after every round."""
    seen: list[Weights] = []
    method = run(
        folder,
        name,
        {**SETTINGS, **settings},
        look=lambda one: seen.append(hypernet_of(one)),
        simulate={"evaluate_every": 1},
    )
    assert len(seen) == ROUNDS
    return method, seen


def parted(state: Weights) -> tuple[Weights, Weights]:
    """φ and its momentum."""
    speed = {n.removeprefix("momentum/"): v for n, v in state.items() if n.startswith("momentum/")}
    return {n: v for n, v in state.items() if "/" not in n}, speed


def assert_close(found: Mapping[str, Any], wanted: Weights) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(np.asarray(found[name]), value.numpy(), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "one by one"])
def test_pfedhn(tmp_path: Path, parallel: bool) -> None:
    _, seen = seen_in(tmp_path, "pfedhn", {"parallel": parallel})
    groups = [list(DEVICES)] if parallel else [[device] for device in DEVICES]
    for before, after in pairwise(seen):
        phi, speed = parted(before)
        away = {}
        for device, data in DATA.items():
            made = written(phi, row_of(data), MLP)
            ends = trained(made, data)
            away[device] = {name: made[name] - ends[name] for name in MLP}
        for group in groups:
            pulls = [pull(phi, row_of(DATA[device]), away[device], MLP) for device in group]
            phi, speed = step(phi, speed, pulls)
        assert_close(after, phi)


def adapted_loss(rho: Weights, data: Rows) -> Tensor:
    return functional.cross_entropy(logits(merged(rho), data[0]), data[1])


def test_hyperflora_without_pairs(tmp_path: Path) -> None:
    """Adapters of rank 1 on both hidden layers, y = W x + b + B A x, where W stands still."""
    settings = {"pairs": False, "pretrain_rounds": 0, "targets": ["fc1.1", "fc2.0"]}
    method, seen = seen_in(tmp_path, "hyperflora", settings)
    for before, after in pairwise(seen):
        phi, speed = parted(before)
        pulls = []
        for data in DATA.values():
            made = written(phi, row_of(data), ADAPTERS)
            ends = trained(made, data, adapted_loss)
            pulls.append(pull(phi, row_of(data), {n: made[n] - ends[n] for n in ADAPTERS}, ADAPTERS))
        assert_close(after, step(phi, speed, pulls)[0])
    phi, _ = parted(seen[-1])
    for device, data in DATA.items():
        assert_close(method.model_of(device)[1], merged(written(phi, row_of(data), ADAPTERS)))
