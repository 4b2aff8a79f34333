"""The suite fedconv-server: what compression and dilation cost a server, against ordinary training in the same run."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fedwright.benchmarks.harness.suite import check
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.fedconv.compression import Compression, kernel_bytes
from fedwright.server_runtime.blocks.fedconv.dilation import Dilation
from fedwright.server_runtime.blocks.fedconv.kernels import KernelForm, Layout, make_layout, start_vector
from fedwright.server_runtime.blocks.joint_tuning import Examples, Goal, Schedule, TunedModel, forward_of, tune
from fedwright.server_runtime.spec import ModelSpec

MODELS = (ModelSpec("lenet", (1, 28, 28), 10), ModelSpec("resnet8", (3, 32, 32), 10))
RATIOS = (0.25, 0.5, 0.75)
BATCH = 64
DEVICES = (2, 4, 8)
TIME_LIMIT, MEMORY_LIMIT, LINEAR = 1.5, 0.2, 1.25


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    torch.set_num_threads(1)
    steps, repeats = (10, 2) if args.quick else (20, 5)
    tuning = [tuning_cost(spec, steps, repeats) for spec in MODELS]
    memory = [memory_cost(spec) for spec in MODELS]
    growth = [dilation_cost(MODELS[0], devices, steps // 5, repeats) for devices in DEVICES]
    checks = []
    for row in tuning:
        for key, trained in (("over three models", "the three models"), ("over the large", "the large model")):
            value, name = row[key], f"tuning {row['model']} for three ratios over training {trained}"
            checks.append(check(name, value, f"<= {TIME_LIMIT}", holds=value <= TIME_LIMIT))
    for row in memory:
        value = row["shared over separate"]
        name = f"memory of shared kernels over separate ones, {row['model']}"
        checks.append(check(name, value, f"<= {MEMORY_LIMIT}", holds=value <= MEMORY_LIMIT))
    per = [row["ms per device"] for row in growth]
    checks.append(
        check("time per dilated device, 8 over 2", per[-1] / per[0], f"<= {LINEAR}", holds=per[-1] <= LINEAR * per[0])
    )
    return {
        "seeds": [0],
        "tables": {"compression, ms per step": tuning, "kernels, kB": memory, "dilation": growth},
        "checks": checks,
    }


def tuning_cost(spec: ModelSpec, steps: int, repeats: int) -> dict[str, Any]:
    """One step of tuning all ratios beside one step of ordinary training: of the large model, of the three small ones.

    Rounds of all three alternate, so that whatever else the machine does meets each of them.
    """
    examples = _examples(spec, steps)
    specs = [zoo.scaled(spec, ratio) for ratio in RATIOS]
    layout, theta = _kernels(spec, specs, KernelForm())
    large = {name: value.detach() for name, value in zoo.create(spec, seed=1).named_parameters()}
    made = Compression(layout, [zoo.sizes_of(own) for own in specs], large)
    members = [TunedModel(forward_of(zoo.create(own, seed=0)), Goal(examples)) for own in specs]
    schedule = Schedule(1, BATCH)
    actions = (
        lambda: tune(theta, made.submodels, members, schedule=schedule, seed=0),
        lambda: _ordinary([spec], examples),
        lambda: _ordinary(specs, examples),
    )
    tuned, whole, small = (1e3 * value / steps for value in _least(actions, repeats))
    return {
        "model": spec.model,
        "tuning": tuned,
        "large model": whole,
        "three models": small,
        "over the large": tuned / whole,
        "over three models": tuned / small,
    }


def _ordinary(specs: Sequence[ModelSpec], examples: Examples) -> None:
    """One epoch of each model as anyone would write it."""
    assert examples.y is not None
    for spec in specs:
        module = zoo.create(spec, seed=1)
        optimizer = torch.optim.Adam(module.parameters(), 1e-3)
        for rows in torch.split(examples.fit, BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(module(examples.x[rows]), examples.y[rows]).backward()
            optimizer.step()


def memory_cost(spec: ModelSpec) -> dict[str, Any]:
    """Parameters of all ratios with a kernel per layer, and with one per weight image."""
    specs = [zoo.scaled(spec, ratio) for ratio in RATIOS]
    sizes = [zoo.sizes_of(own) for own in specs]
    shared, separate = (kernel_bytes(_kernels(spec, specs, KernelForm(shared=one))[0], sizes) for one in (True, False))
    return {
        "model": spec.model,
        "shared": shared / 1e3,
        "separate": separate / 1e3,
        "shared over separate": shared / separate,
    }


def dilation_cost(spec: ModelSpec, devices: int, steps: int, repeats: int) -> dict[str, Any]:
    """One step of tuning the dilation of so many devices in one batch."""
    examples = _examples(spec, steps)
    specs = [zoo.scaled(spec, RATIOS[number % len(RATIOS)]) for number in range(devices)]
    layout, theta = _kernels(spec, specs, KernelForm())
    small = [{n: v.detach() for n, v in zoo.create(own, seed=1).named_parameters()} for own in specs]
    made = Dilation(layout, [zoo.sizes_of(own) for own in specs], small)
    members = [TunedModel(forward_of(zoo.create(spec, seed=0)), Goal(examples))] * devices

    def action() -> object:
        return tune(theta, made.models, members, schedule=Schedule(1, BATCH), seed=0)

    step = 1e3 * _least((action,), repeats)[0] / steps
    return {"devices": devices, "ms per step": step, "ms per device": step / devices}


def _examples(spec: ModelSpec, steps: int) -> Examples:
    rng = np.random.default_rng(0)
    rows = steps * BATCH + 1
    x = torch.from_numpy(rng.standard_normal((rows, *spec.input_shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, spec.classes, rows))
    return Examples(x, y, torch.arange(rows - 1), torch.arange(rows - 1, rows))


def _kernels(spec: ModelSpec, specs: Sequence[ModelSpec], form: KernelForm) -> tuple[Layout, torch.Tensor]:
    shapes = {name: tuple(value.shape) for name, value in zoo.create(spec, seed=1).named_parameters()}
    smallest = zoo.sizes_of(zoo.scaled(spec, min(RATIOS)))
    layout = make_layout(zoo.axes_of(spec), shapes, full=zoo.full_sizes(spec), smallest=smallest, form=form)
    generator = torch.Generator().manual_seed(0)
    return layout, torch.stack([start_vector(layout, zoo.sizes_of(own), generator=generator) for own in specs])


def _least(actions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """CPU seconds of the shortest of several runs of each."""
    found = [float("inf")] * len(actions)
    for _ in range(repeats + 1):
        for number, action in enumerate(actions):
            start = time.process_time()
            action()
            found[number] = min(found[number], time.process_time() - start)
    return found
