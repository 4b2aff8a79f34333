"""The suite aggregate: folding submodels into one model, in bytes per second, against a plain copy in the same run."""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.benchmarks.harness.suite import check
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.averaging import SelectiveMean
from fedwright.server_runtime.blocks.slicing import Axes, Plan, prefix_plan, random_plan, rolling_plan, take
from fedwright.server_runtime.spec import ModelSpec

# ResNet-18 has 11 million parameters.
SPEC = ModelSpec("resnet18", (3, 32, 32), 10)
WIDTHS = (1.0, 0.5, 0.25)
TARGET_RATIO = 0.5
# A random draw of channels touches memory in pieces of a few bytes, which nothing makes as fast as a copy.
CHECKED = ("prefix", "window")
MAX_MODELS = 4.0
COLD_BYTES = 128e6

Tensors = dict[str, NDArray[Any]]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Time per device and its ratio to copying as many bytes; memory over a growing number of devices."""
    weights = initial_weights(zoo.create(SPEC, seed=0))
    axes, full = zoo.axes_of(SPEC), zoo.full_sizes(SPEC)
    repeats = 3 if args.quick else 10
    rows, checks = [], []
    for width in WIDTHS:
        for kind, plan in _plans(full, zoo.sizes_of(zoo.scaled(SPEC, width))).items():
            part = take(weights, axes, plan)
            row = _measured(weights, axes, part, plan=plan, repeats=repeats, own=kind == "random")
            rows.append({"submodel": f"width {width} ({kind})", **row})
            if kind in CHECKED:
                ratio = row["ratio to copy"]
                name = f"speed against a copy at width {width} ({kind})"
                checks.append(check(name, ratio, f">= {TARGET_RATIO}", holds=ratio >= TARGET_RATIO))
    used = _peak_models(weights, axes, devices=8 if args.quick else 32)
    checks.append(check("memory of a round, in models", used, f"<= {MAX_MODELS}", holds=used <= MAX_MODELS))
    return {"tables": {"aggregation of ResNet-18, 11 M parameters": rows}, "checks": checks}


def _plans(full: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, Plan]:
    """The submodels that methods cut: the first channels, a window that wraps around, a random draw."""
    plans: dict[str, Plan] = {"prefix": prefix_plan(full, sizes)}
    if full != sizes:
        plans["window"] = rolling_plan(full, sizes, max(full.values()) - 5)
        plans["random"] = random_plan(full, sizes, np.random.default_rng(0))
    return plans


def _measured(weights: Tensors, axes: Axes, part: Tensors, *, plan: Plan, repeats: int, own: bool) -> dict[str, float]:
    """The best of several passes over many devices, copy and sum in turn so that both meet the same machine.

    own: every device has a plan of its own, so that nothing made for one serves another.

    Updates are new to the processor's caches, so each pass goes over more of them than any cache holds. A copy moves
    two bytes per byte of the part, a sum three: it reads the part and the total and writes the total.
    """
    part_bytes = sum(value.nbytes for value in part.values())
    devices = max(1, round(COLD_BYTES / part_bytes))
    updates = [{name: value.copy() for name, value in part.items()} for _ in range(devices)]
    targets = [{name: value.copy() for name, value in part.items()} for _ in range(devices)]
    mean = SelectiveMean(weights, axes)
    mean.add(part, plan, 2.0)

    def copy() -> None:
        for source, target in zip(updates, targets, strict=True):
            for name, value in source.items():
                np.copyto(target[name], value)

    def add() -> None:
        for update in updates:
            mean.add(update, dict(plan) if own else plan, 3.0)

    times = [(_seconds(copy), _seconds(add)) for _ in range(repeats)]
    copy_s, add_s = (min(column) / devices for column in zip(*times, strict=True))
    return {
        "parameters M": part_bytes / 4e6,
        "ms": 1e3 * add_s,
        "GB/s": 3 * part_bytes / add_s / 1e9,
        "copy GB/s": 2 * part_bytes / copy_s / 1e9,
        "ratio to copy": (3 * part_bytes / add_s) / (2 * part_bytes / copy_s),
    }


def _seconds(work: Callable[[], None]) -> float:
    """Processor time, which other work on the machine disturbs less than the clock."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _peak_models(weights: Tensors, axes: Axes, *, devices: int) -> float:
    """Peak memory of a round over many devices beyond the model itself, in models; updates come one at a time."""
    model_bytes = sum(value.nbytes for value in weights.values())
    tracemalloc.start()
    mean = SelectiveMean(weights, axes)
    for number in range(devices):
        mean.add(weights, {}, 1.0 + number)
    mean.result()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak / model_bytes)
