"""A step of DP-SGD beside a plain one, in the graph and in Opacus, by the least CPU time of several."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedwright.benchmarks.harness.suite import check, reported
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.device_runtime.train.private import StepPrivacy
from fedwright.protocol.messages import Hiding
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Structure

BATCH, CLASSES, STEPS = 32, 10, 25
CLIP, NOISE = 1.0, 1.0
MOST_RATIO = 1.6
SHAPES = {"vit-tiny": (3, 32, 32), "resnet8-gn": (3, 32, 32)}
Part = tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]


def step_tables(models: Sequence[str]) -> Part:
    """Milliseconds of CPU for each model, and whether a private step keeps to its limit."""
    rows, checks = [], []
    for model in models:
        plain, private = our_step(model, private=False), our_step(model, private=True)
        torch_plain, torch_private = torch_step(model, private=False), torch_step(model, private=True)
        rows.append(
            {
                "model": model,
                "plain ms": plain,
                "private ms": private,
                "ratio": private / plain,
                "torch ms": torch_plain,
                "Opacus ms": torch_private,
                "Opacus ratio": torch_private / torch_plain,
            }
        )
        name = f"{model}: a private step beside a plain one"
        checks.append(check(name, private / plain, f"<= {MOST_RATIO:g}", holds=private <= MOST_RATIO * plain))
        checks.append(reported(f"{model}: Opacus beside our private step", torch_private / private))
    return {f"one step, batch {BATCH}, one thread: CPU ms": rows}, checks


def our_step(model: str, *, private: bool) -> float:
    """With drawing the noise, as on a device."""
    spec = ModelSpec(model, SHAPES.get(model, (1, 28, 28)), CLASSES)
    module = zoo.create(spec, seed=0)
    trainer = PortableTrainer(build(Structure(spec, private=private), module), threads=1)
    trainer.load({name: np.asarray(value) for name, value in initial_weights(module).items()})
    batch: dict[str, Any] = _batch(spec)
    if private:
        trainer.hide(StepPrivacy(Hiding(CLIP, NOISE), BATCH))
        batch["row_weight"] = np.ones(BATCH, np.float32)
    return least_ms(lambda: trainer.step(batch, learning_rate=0.05, seed=1))


def torch_step(model: str, *, private: bool) -> float:
    """Plain torch, or the same module and optimizer in Opacus' wrappers (gradients of single samples)."""
    torch.set_num_threads(1)
    spec = ModelSpec(model, SHAPES.get(model, (1, 28, 28)), CLASSES)
    module: Any = zoo.create(spec, seed=0).train()
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.05)
    if private:
        module, optimizer = _wrapped(module, optimizer)
    found = _batch(spec)
    x, y = torch.from_numpy(found["x"]), torch.from_numpy(found["y"])

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return least_ms(step)


def _wrapped(module: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    made = DPOptimizer(optimizer, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=BATCH)
    return GradSampleModule(module), made


def _batch(spec: ModelSpec) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((BATCH, *spec.input_shape)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, CLASSES, BATCH)}


def least_ms(step: Callable[[], object]) -> float:
    """The least CPU time of a step, after a few that warm up."""
    for _ in range(3):
        step()
    times = []
    for _ in range(STEPS):
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    return 1000 * min(times)
