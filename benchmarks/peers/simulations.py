"""The same simulated rounds in Fedwright and in pfl-research, one after the other, each in a process of its own."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.public_libraries import environment_of
from fedwright.benchmarks.harness.suite import check
from fedwright.protocol.errors import ConfigError

# Beside what a server has: pfl's own requirements that are imported.
PFL = ("pfl==0.6.0", "multiprocess==0.70.19", "dill==0.4.1", "prv-accountant==0.2.0")
OURS, THEIRS = "fedwright.benchmarks.processes.fleet_simulation", "fedwright.benchmarks.peers.pfl_simulation"


@dataclass(frozen=True)
class Fleet:
    """A simulated fleet; most: CPU per round, as a share of pfl's."""

    model: str
    shape: tuple[int, ...]
    devices: int
    drawn: int
    samples: int
    most: float


FLEETS = (
    Fleet("lenet-valid", (1, 28, 28), 100, 100, 50, 0.5),
    Fleet("lenet-valid", (1, 28, 28), 1_000, 100, 25, 0.5),
    Fleet("lenet-valid", (1, 28, 28), 10_000, 100, 6, 0.5),
    Fleet("resnet18", (3, 32, 32), 10, 10, 32, 1.0),
)
ROUNDS, QUICK_ROUNDS, DEEP_ROUNDS = 11, 6, 3


@dataclass(frozen=True)
class Beside:
    """A table, and what is promised of it."""

    rows: list[dict[str, Any]]
    checks: list[dict[str, Any]]


def compare(*, quick: bool) -> Beside:
    """All fleets on both systems; quick: without the deep model. Where pfl cannot be installed, it is left out."""
    try:
        python: Path | None = environment_of("pfl", PFL)
    except ConfigError as err:
        sys.stderr.write(f"{err}\n")
        python = None
    rows, checks = [], []
    for fleet in FLEETS:
        if quick and fleet.model == "resnet18":
            continue
        found = _measured(fleet, python, rounds=QUICK_ROUNDS if quick else ROUNDS)
        rows += [{"model": fleet.model, "devices": fleet.devices, "system": name, **one} for name, one in found.items()]
        if "pfl-research" in found:
            checks += _checks(fleet, found["fedwright"], found["pfl-research"])
    checks.append(_start_check(rows))
    return Beside(rows, checks)


def _measured(fleet: Fleet, python: Path | None, *, rounds: int) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(0)
    count = fleet.devices * fleet.samples
    with tempfile.TemporaryDirectory(prefix="fedwright-fleet-") as folder:
        file = Path(folder) / "rows.npz"
        x, y = rng.random((count, *fleet.shape), np.float32), rng.integers(0, 10, count)
        np.savez(file, x=x, y=y, rows=rng.permutation(count).reshape(fleet.devices, fleet.samples))
        del x
        given = {
            "data": str(file),
            "model": {"model": fleet.model, "input_shape": list(fleet.shape), "classes": 10},
            "rounds": DEEP_ROUNDS if fleet.model == "resnet18" else rounds,
            "drawn": fleet.drawn,
            "batch": 32,
            "learning_rate": 0.01,
        }
        found = {"fedwright": _run(Path(sys.executable), OURS, given)}
        if python is not None:
            found["pfl-research"] = _run(python, THEIRS, given)
    return found


def _run(python: Path, module: str, given: dict[str, Any]) -> dict[str, float]:
    """What one system took, by its own clock of CPU time."""
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    made = subprocess.run(
        [str(python), "-m", module, json.dumps(given)], capture_output=True, text=True, env=quiet, check=False
    )
    if made.returncode:
        said = made.stderr.strip().splitlines() or ["nothing"]
        raise ConfigError(f"{module} ended with an error, so nothing can be compared: {said[-1]}")
    told = json.loads(made.stdout.splitlines()[-1])
    return {
        "CPU s per round": statistics.median(told["rounds_cpu_s"]),
        "CPU s to the end of round 1": told["first_cpu_s"],
        "MB": told["peak_bytes"] / 1e6,
    }


def _checks(fleet: Fleet, ours: dict[str, float], theirs: dict[str, float]) -> list[dict[str, Any]]:
    where = f"{fleet.model}, {fleet.devices} devices"
    cpu = ours["CPU s per round"] / theirs["CPU s per round"]
    memory = ours["MB"] / theirs["MB"]
    return [
        check(f"CPU per round, share of pfl-research: {where}", cpu, f"<= {fleet.most}", holds=cpu <= fleet.most),
        check(f"memory, share of pfl-research: {where}", memory, "<= 1", holds=memory <= 1),
    ]


def _start_check(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How much longer the first round of a hundred times as many devices takes to be over."""
    small, large = (
        next(row for row in rows if row["system"] == "fedwright" and row["devices"] == count) for count in (100, 10_000)
    )
    more = large["CPU s to the end of round 1"] - small["CPU s to the end of round 1"]
    return check("CPU s that 10,000 devices start later than 100", more, "<= 1", holds=more <= 1)
