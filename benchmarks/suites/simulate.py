"""The suite simulate: seconds of a round of 100 simulated devices, and CPU and memory beside pfl-research."""

import argparse
import json
import os
import tempfile
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.suite import check
from fedwright.benchmarks.peers import simulations
from fedwright.server_runtime.config import config_from_dict
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.partition import Split, by_iid
from fedwright.simulation.simulate import simulate

DEVICES, SAMPLES = 100, 40
TARGET_S = 1.0
CONFIG: dict[str, dict[str, Any]] = {
    "run": {"name": "speed", "seed": 1},
    "model": {"model": "lenet-valid"},
    "method": {"name": "fedavg"},
    "train": {"batch": 32, "epochs": 1},
    "simulate": {"evaluate_every": 0},
    "export": {"global_model": False},
}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds of a fleet on random images."""
    row = _measured(rounds=6 if args.quick else 21)
    seconds = row["median round s"]
    beside = simulations.compare(quick=args.quick)
    return {
        "seeds": [1],
        "tables": {
            f"one step of lenet-valid on each device, {os.cpu_count()} cores": [row],
            "one epoch of FedAvg, one process and thread, beside pfl-research": beside.rows,
        },
        "checks": [
            check("seconds per round", seconds, f"< {TARGET_S}", holds=seconds < TARGET_S),
            *beside.checks,
        ],
    }


def _measured(*, rounds: int) -> dict[str, Any]:
    """The first round starts the processes and is left out of the median."""
    with tempfile.TemporaryDirectory(prefix="fedwright-speed-") as folder:
        data = {**CONFIG, "run": {**CONFIG["run"], "folder": folder, "rounds": rounds}}
        began = _cpu_s()
        found = simulate(config_from_dict(data, where="suite simulate"), json.dumps(data), dealt=random_images())
        used = _cpu_s() - began
    return {
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
