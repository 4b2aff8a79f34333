"""Every model of the zoo trains in plain operators as it does in torch: one step's gradient, then twenty steps."""

import copy
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.structure import ModelSpec, Objective, Optimizer, Structure
from fedwright.server_runtime.zoo.adapters import adapter_names

BATCH = 6
STEPS = 20
RATE = 0.02
MOMENTUM = 0.9
# Large models run at a part of their width; the layers and their kinds of sizes stay.
SLIM = ("resnet18", "resnet18-gn", "cnn4", "cnn-hasa", "mobilenet-v1", "mobilenet-v2", "mobilenet-v3")
CLASSES = {"lstm-lm": 50}


@dataclass(frozen=True)
class Case:
    """A model, its structure, the trainer that runs its artifact and one batch."""

    module: nn.Module
    structure: Structure
    trainer: PortableTrainer
    weights: dict[str, np.ndarray]
    batch: dict[str, np.ndarray]

    @property
    def trainable(self) -> list[str]:
        return [name for name, _ in self.module.named_parameters() if name.startswith(self.structure.trainable)]


@cache
def case_of(name: str) -> Case:
    entry = zoo.MODELS[name]
    spec = zoo.scaled(
        ModelSpec(name, entry.example_shape, CLASSES.get(name, entry.example_classes)), 0.25 if name in SLIM else 1
    )
    module = zoo.create(spec, seed=1)
    structure = Structure(
        spec,
        objective=Objective(exits=name == "cnn-exits"),
        optimizer=Optimizer(momentum=MOMENTUM),
        trainable=adapter_names(module) or ("",),
    )
    artifact = build(structure, module)
    named = initial_weights(module)
    frozen = {tensor.name: named[tensor.name] for tensor in artifact.manifest.frozen}
    trainer = PortableTrainer(artifact, frozen=frozen)
    weights = {slot.name: named[slot.name] for slot in artifact.manifest.slots if slot.role != "optimizer"}
    return Case(module, structure, trainer, weights, _batch(module, spec, 0))


def _batch(module: zoo.ZooModel, spec: ModelSpec, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch = {}
    for item in module.inputs():
        shape = [BATCH if size == -1 else size for size in item.shape]
        tokens = rng.integers(0, BATCH if item.name == "edges" else spec.classes, shape)
        batch[item.name] = tokens if item.dtype == "int64" else rng.standard_normal(shape).astype(np.float32)
    return batch | {"y": rng.integers(0, spec.classes, BATCH)}


def _loss(case: Case, module: nn.Module) -> torch.Tensor:
    """Mean cross-entropy; with several exits, exit j weighs j."""
    kind = next(module.parameters()).dtype
    inputs = [torch.tensor(array) for name, array in case.batch.items() if name != "y"]
    outputs = module(*(value.to(kind) if value.is_floating_point() else value for value in inputs))
    exits = outputs if isinstance(outputs, tuple | list) else (outputs,)
    terms = [(j + 1) * cross_entropy(logits, torch.tensor(case.batch["y"])) for j, logits in enumerate(exits)]
    return sum(terms) / sum(range(1, len(terms) + 1))


def _float64_gradients(case: Case) -> dict[str, np.ndarray]:
    module = copy.deepcopy(case.module).double()
    module.train()
    _loss(case, module).backward()
    return {name: value.grad.numpy() for name, value in module.named_parameters() if name in case.trainable}


def _torch_losses(case: Case, *, disturb: float = 0.0, kind: torch.dtype = torch.float32) -> np.ndarray:
    """The loss before each step; `disturb` is the relative size of a random change of the starting weights."""
    module = copy.deepcopy(case.module).to(kind)
    module.train()
    draw = torch.Generator().manual_seed(3)
    trained = [value for name, value in module.named_parameters() if name in case.trainable]
    with torch.no_grad():
        for value in trained:
            value.mul_(1 + disturb * torch.randn(value.shape, generator=draw))
    optimizer = torch.optim.SGD(trained, RATE, momentum=MOMENTUM)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = _loss(case, module)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return np.array(losses)


def _distance(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """Relative distance over all tensors together."""
    off = sum(float(((found[name] - exact[name]) ** 2).sum()) for name in exact)
    return (off / sum(float((array**2).sum()) for array in exact.values())) ** 0.5


def _gradient_error(case: Case, seed: int) -> float:
    """Distance of one step's gradient from torch's in float64, on a batch of its own."""
    tried = replace(case, batch=_batch(case.module, case.structure.spec, seed))
    tried.trainer.load(tried.weights)
    tried.trainer.step(tried.batch, learning_rate=RATE, seed=0)
    state = tried.trainer.snapshot()
    found = {parameter: state[f"momentum/{parameter}"] for parameter in tried.trainable}
    return _distance(found, _float64_gradients(tried))


@pytest.mark.parametrize("name", sorted(zoo.MODELS))
def test_one_step_gradient(name):
    """In a deep net a ReLU may lie so near its kink that float32 flips it; a wrong rule is wrong on every batch."""
    case = case_of(name)

    assert any(_gradient_error(case, seed) <= 1e-4 for seed in range(8))


@pytest.mark.parametrize("name", sorted(zoo.MODELS))
def test_twenty_steps(name):
    """The loss curve stays as near to torch's as torch stays to itself when its weights or sums are rounded anew."""
    case = case_of(name)
    case.trainer.load(case.weights)

    losses = [case.trainer.step(case.batch, learning_rate=RATE, seed=step).loss for step in range(STEPS)]

    curve = _torch_losses(case)
    others = _torch_losses(case, disturb=6e-8), _torch_losses(case, kind=torch.float64)
    yardstick = max(np.abs(other - curve).max() for other in others)
    assert np.abs(np.array(losses) - curve).max() <= max(1e-5, 5 * yardstick)
    assert curve[-1] < curve[0]


@pytest.mark.parametrize("name", ["resnet8", "mobilenet-v2"])
def test_running_statistics(name):
    case = case_of(name)
    case.trainer.load(case.weights)
    module = copy.deepcopy(case.module)
    module.train()

    case.trainer.step(case.batch, learning_rate=RATE, seed=0)
    with torch.no_grad():
        _loss(case, module)

    after = case.trainer.weights()
    wanted = {name: value.numpy() for name, value in module.named_buffers() if name in after}
    assert len(wanted) > 10
    assert _distance(after, wanted) < 1e-5
