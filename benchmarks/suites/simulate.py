"""The suite simulate: seconds of a round of 100 simulated devices, and CPU and memory beside pfl-research."""

import argparse
import json
import os
import tempfile
import time
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.suite import check
from fedwright.benchmarks.peers import simulations
from fedwright.device_runtime.train.base import Trainer
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.device_runtime.train.torch import use_threads
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.partition import Split, by_iid
from fedwright.simulation.simulate import simulate
from fedwright.simulation.torch_backend import torch_trainer

DEVICES, SAMPLES = 100, 40
TARGET_S = 1.0
BACKENDS = ("portable", "torch")
REPEATS = 12
STEPS = (
    (ModelSpec("lenet-valid", (1, 28, 28), 10), 32),
    (ModelSpec("cnn-gn", (1, 28, 28), 10), 32),
    (ModelSpec("lstm-lm", (23,), 3437), 64),
)
CONFIG: dict[str, dict[str, Any]] = {
    "run": {"name": "speed", "seed": 1},
    "model": {"model": "lenet-valid"},
    "method": {"name": "fedavg"},
    "train": {"batch": 32, "epochs": 1},
    "simulate": {"evaluate_every": 0},
    "export": {"global_model": False},
}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds of a fleet on random images, on the devices' graphs and on torch."""
    rows = [_measured(backend, rounds=6 if args.quick else 21) for backend in BACKENDS]
    seconds = rows[0]["median round s"]
    beside = simulations.compare(quick=args.quick)
    return {
        "seeds": [1],
        "tables": {
            f"one step of lenet-valid on each device, {os.cpu_count()} cores": rows,
            "CPU time of one step, one thread": [_stepped(spec, batch) for spec, batch in STEPS],
            "one epoch of FedAvg, one process and thread, beside pfl-research": beside.rows,
        },
        "checks": [
            check("seconds per round", seconds, f"< {TARGET_S}", holds=seconds < TARGET_S),
            *beside.checks,
        ],
    }


def _stepped(spec: ModelSpec, batch: int) -> dict[str, Any]:
    """How much faster torch does a step: what a simulation with few processes and long tasks gains by it."""
    structure, rng = Structure(spec), np.random.default_rng(0)
    words = spec.model.startswith("lstm")
    x = rng.integers(0, spec.classes, (batch, *spec.input_shape)) if words else rng.random((batch, *spec.input_shape))
    rows = {"x": x.astype(np.int64 if words else np.float32), "y": rng.integers(0, spec.classes, batch)}
    found = {}
    use_threads(1)
    for backend, trainer in _trainers(structure).items():
        trainer.load(initial_weights(zoo.create(spec, seed=0)))
        times = []
        for _ in range(REPEATS):
            began = time.process_time()
            trainer.step(rows, learning_rate=0.01, seed=0)
            times.append(time.process_time() - began)
        found[f"{backend} ms"] = 1e3 * min(times)
    return {"model": spec.model, "batch": batch, **found, "torch faster": found["portable ms"] / found["torch ms"]}


def _trainers(structure: Structure) -> dict[str, Trainer]:
    return {"portable": PortableTrainer(Builder().build(structure)), "torch": torch_trainer(structure)}


def _measured(backend: str, *, rounds: int) -> dict[str, Any]:
    """The first round starts the processes and is left out of the median."""
    with tempfile.TemporaryDirectory(prefix="fedwright-speed-") as folder:
        data = {**CONFIG, "run": {**CONFIG["run"], "folder": folder, "rounds": rounds}}
        data["simulate"] = {**CONFIG["simulate"], "backend": backend}
        began = _cpu_s()
        found = simulate(config_from_dict(data, where="suite simulate"), json.dumps(data), dealt=random_images())
        used = _cpu_s() - began
    return {
        "backend": backend,
        "devices": DEVICES,
        "first round s": found.round_s[0],
        "median round s": float(np.median(found.round_s[1:])),
        "fastest round s": min(found.round_s[1:]),
        "all CPU s": used,
    }


def random_images() -> Dealt:
    """As many samples for each device as make one step."""
    rng = np.random.default_rng(0)
    rows = DEVICES * SAMPLES
    x = rng.random((rows, 1, 28, 28), np.float32)
    shares = by_iid(rows, DEVICES, rng=rng, split=Split(test=0.2))
    return Dealt(x, rng.integers(0, 10, rows), 10, shares)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
