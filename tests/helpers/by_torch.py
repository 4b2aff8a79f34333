"""Training of a small fleet written with torch alone, to hold whole simulated runs against.

Every device takes its rows as one batch, so that their order does not matter; nothing of the program's own blocks is
used on this side.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from fedwright.server_runtime.methods.base import Method
from fedwright.simulation import datasets
from fedwright.simulation.datasets import Limit
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.partition import Share
from fedwright.simulation.simulate import simulate
from helpers.simulation import make_config

Weights = dict[str, Tensor]
Rows = tuple[Tensor, Tensor]
Loss = Callable[[Weights, Rows], Tensor]

W1, B1 = "encoder.fc1.1.weight", "encoder.fc1.1.bias"
W2, B2 = "encoder.fc2.0.weight", "encoder.fc2.0.bias"
HEAD, HEAD_BIAS = "head.weight", "head.bias"
WIDTHS, CLASSES = (128, 64), 10
SAMPLES = (30, 20, 10)
DEVICES = tuple(f"device-{number}" for number in range(len(SAMPLES)))
RATE, EPOCHS, ROUNDS = 0.2, 2, 3


def begin() -> Weights:
    """Weights of the mlp as torch begins."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(64, WIDTHS[0]), torch.nn.Linear(*WIDTHS), torch.nn.Linear(WIDTHS[1], CLASSES)]
    names = [(W1, B1), (W2, B2), (HEAD, HEAD_BIAS)]
    pairs = [(pair, (layer.weight, layer.bias)) for layer, pair in zip(layers, names, strict=True)]
    return {name: v.detach().double() for pair, own in pairs for name, v in zip(pair, own, strict=True)}


def _dealt() -> Dealt:
    """Digits; each device lacks two classes, another two each."""
    found = datasets.load("digits", limit=Limit(train=400, test=1))
    y, shares = found.y_train, {}
    free = np.ones(len(y), bool)
    for number, (device, count) in enumerate(zip(DEVICES, SAMPLES, strict=True)):
        own = np.flatnonzero(free & (y != number) & (y != number + 1))[: count + 2]
        free[own] = False
        shares[device] = Share(own[:count], own[:0], own[count:])
    return Dealt(found.x_train, y, CLASSES, shares)


DEALT = _dealt()
DATA: dict[str, Rows] = {
    device: (torch.from_numpy(DEALT.x[share.train]).double().flatten(1), torch.from_numpy(DEALT.y[share.train]))
    for device, share in DEALT.shares.items()
}


def run(
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    momentum: float = 0.0,
    weights: Weights | None = None,
    look: Callable[[Method], None] | None = None,
    **sections: dict[str, Any],
) -> Method:
    """The method after a simulated run from these weights; papers hold nobody's change to others' length.

    look: sees the method after every measured round.
    """
    folder.mkdir(exist_ok=True)
    save_file({key: value.float() for key, value in (weights or begin()).items()}, folder / "begin.safetensors")
    tables: dict[str, dict[str, Any]] = {
        "model": {"model": "mlp", "weights": str(folder / "begin.safetensors")},
        "method": {"name": name, **(settings or {})},
        "train": {"batch": 64, "epochs": EPOCHS, "learning_rate": RATE, "optimizer": {"momentum": momentum}},
        "fleet": {"devices": len(DEVICES)},
        "simulate": {"devices": len(DEVICES), "evaluate_every": 0},
        "update": {"norm_factor": 0},
    }
    for table, own in sections.items():
        tables[table] = tables.get(table, {}) | own
    config, text = make_config(folder / "run", rounds=ROUNDS, processes=0, **tables)
    seen: list[Method] = []

    def watch(method: Method, number: int) -> None:
        seen.append(method)
        if look is not None:
            look(method)

    simulate(config, text, dealt=DEALT, look=watch)
    return seen[-1]


def assert_model(method: Method, wanted: Weights, device: str = "") -> None:
    """The method's model is this one, entry by entry, and it is not that of the beginning."""
    found, first = method.model_of(device)[1], begin()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value.numpy(), atol=2e-5, err_msg=name)
        same = first.get(name)
        assert same is None or same.shape != value.shape or float((value - same).abs().max()) > 1e-3, name


def logits(w: Weights, x: Tensor, scale: float = 1.0) -> Tensor:
    """The mlp; hidden layers divided by `scale`."""
    hidden = functional.relu((x @ w[W1].T + w[B1]) / scale)
    hidden = functional.relu((hidden @ w[W2].T + w[B2]) / scale)
    return hidden @ w[HEAD].T + w[HEAD_BIAS]


def cross_entropy(w: Weights, data: Rows) -> Tensor:
    """Of all rows."""
    return functional.cross_entropy(logits(w, data[0]), data[1])


def gradient(w: Weights, data: Rows, loss: Loss = cross_entropy) -> Weights:
    """By torch."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    found = torch.autograd.grad(loss(leaves, data), list(leaves.values()))
    return dict(zip(w, found, strict=True))


def stepped(w: Weights, step: Weights, rate: float) -> Weights:
    """w − rate · step."""
    return {name: value - rate * step[name] for name, value in w.items()}


def trained(
    w: Weights, data: Rows, loss: Loss = cross_entropy, *, momentum: float = 0.0, epochs: int = EPOCHS
) -> Weights:
    """SGD as torch has it, one step for each pass."""
    speed = {name: torch.zeros_like(value) for name, value in w.items()}
    for _ in range(epochs):
        grad = gradient(w, data, loss)
        speed = {name: momentum * value + grad[name] for name, value in speed.items()}
        w = stepped(w, speed, RATE)
    return w


def mean(models: Mapping[str, Weights], *, by_samples: bool) -> Weights:
    """The mean of whole models, by the rows that each was trained on or plainly."""
    count = {device: float(len(DATA[device][1])) if by_samples else 1.0 for device in models}
    names = next(iter(models.values()))
    zero = torch.zeros(())
    return {n: sum((count[d] * w[n] for d, w in models.items()), zero) / sum(count.values()) for n in names}
