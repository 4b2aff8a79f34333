"""The suite hypernet: what writing models costs a server, against the vector-Jacobian products alone."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from fedwright.benchmarks.harness.suite import check
from fedwright.device_runtime.facts import peak_rss_bytes
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.hypernet import BATCH, HEAD, Hypernet, HypernetForm, HypernetStart, Step
from fedwright.server_runtime.blocks.masking import top_entries
from fedwright.server_runtime.spec import ModelSpec

SMALL = ModelSpec("cnn-gn", (1, 28, 28), 10)
LARGE = ModelSpec("resnet18-gn", (3, 32, 32), 10)
ADAPTED = ModelSpec("lenet-lora", (3, 32, 32), 10, (("rank", 1),))
DESCRIPTOR, HIDDEN, PARTICIPANTS = 128, 64, 10
STEP = Step(0.5)
LIMIT_BYTES = 2 * 10**9
# Run in a process of its own: its peak is then that of the large model alone.
CHILD = "from fedwright.benchmarks.suites.hypernet import large_round; print(large_round())"


class ServerCost(NamedTuple):
    """Seconds of CPU and of the clock."""

    cpu_s: float
    wall_s: float


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    repeats = 3 if args.quick else 10
    torch.set_num_threads(1)
    rows = [round_cost(count, repeats) for count in (PARTICIPANTS, 100, 1000)]
    writing = [{"devices": n, **_ms("adapters", adapters_cost(n, repeats))} for n in (10, 100, 1000)]
    peak = int(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout)
    beyond = {kind: rows[0][f"round {kind} ms"] - rows[0][f"products {kind} ms"] for kind in ("CPU", "wall")}
    thousand = {kind: writing[-1][f"adapters {kind} ms"] for kind in ("CPU", "wall")}
    grown = rows[-1]["held MB"] / rows[0]["held MB"]
    return {
        "seeds": [0],
        "tables": {"a round of a 106 k model": rows, "adapters for bystanders": writing},
        "checks": [
            *(check(f"{k} ms beyond the products, ten devices", v, "<= 50", holds=v <= 50) for k, v in beyond.items()),
            *(check(f"{k} ms to write 1,000 adapters", v, "<= 1000", holds=v <= 1000) for k, v in thousand.items()),
            check("memory held with 1,000 devices over 10", grown, "<= 2", holds=grown <= 2),
            check("peak GB with ResNet-18", peak / 1e9, "<= 2", holds=peak <= LIMIT_BYTES),
        ],
    }


def round_cost(devices: int, repeats: int) -> dict[str, float]:
    """One round: write and mask every model, take every change, learn; beside it the bare products."""
    net, initial = _net(SMALL)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((devices, DESCRIPTOR), dtype=np.float32)
    change = {name: np.full_like(value, 1e-3) for name, value in initial.items()}
    names = [name for name, value in initial.items() if value.ndim > 1]

    def whole() -> None:
        for start in range(0, devices, BATCH):
            for made in net.generate(rows[start : start + BATCH]):
                top_entries(made, names, 0.25, least=0.5)
        for row in rows:
            net.add(row, change)
        net.learn(STEP)

    for row in rows:
        net.add(row, change)
    held = sum(value.nbytes for value in net.state().values())
    head = torch.from_numpy(net.state()[HEAD]).requires_grad_()
    repeats = max(1, repeats * PARTICIPANTS // devices)
    return {
        "devices": devices,
        **_ms("round", _least(whole, repeats)),
        **_ms("products", _least(lambda: _products(head, devices), repeats)),
        "held MB": held / 1e6,
    }


def _products(head: torch.Tensor, devices: int) -> None:
    """J' pulled by as many changes, with nothing else around it."""
    for start in range(0, devices, BATCH):
        hidden = torch.randn(min(BATCH, devices - start), HIDDEN, requires_grad=True)
        written = hidden @ head.T
        torch.autograd.grad(written, [head, hidden], torch.ones_like(written))


def adapters_cost(devices: int, repeats: int) -> ServerCost:
    """Seconds to write adapters for so many devices from their classes."""
    names = zoo.adapter_names(zoo.create(ADAPTED, seed=0))
    whole = initial_weights(zoo.create(ADAPTED, seed=0))
    net = Hypernet(HypernetForm(10, 128, 3), HypernetStart({name: whole[name] for name in names}, {}), seed=0)
    rows = (np.random.default_rng(0).random((devices, 10)) < 0.5).astype(np.float32)
    return _least(lambda: net.generate(rows), repeats)


def large_round() -> int:
    """A round of two devices with ResNet-18 in this process; returns its peak memory in bytes."""
    net = _net(LARGE, chunk=8192)[0]
    rows = np.random.default_rng(0).standard_normal((2, DESCRIPTOR), dtype=np.float32)
    for row in rows:
        made = net.generate(row[None])[0]
        net.add(row, {name: 0.01 * value for name, value in made.items()})
    net.learn(STEP)
    return peak_rss_bytes()


def _net(spec: ModelSpec, chunk: int | None = None) -> tuple[Hypernet, dict[str, Any]]:
    initial = initial_weights(zoo.create(spec, seed=0))
    form = HypernetForm(DESCRIPTOR, HIDDEN, norm=1.0, chunk=chunk, by_entry=True)
    return Hypernet(form, HypernetStart(initial, {}), seed=0), initial


def _ms(what: str, cost: ServerCost) -> dict[str, float]:
    return {f"{what} CPU ms": 1e3 * cost.cpu_s, f"{what} wall ms": 1e3 * cost.wall_s}


def _least(action: Callable[[], object], repeats: int) -> ServerCost:
    """The shortest of several runs by either clock: what the work takes when nothing else is in the way."""
    action()
    found = []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        action()
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return ServerCost(*map(min, zip(*found, strict=True)))
