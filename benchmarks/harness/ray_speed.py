"""How much faster a simulation is on two of Ray's workers than on one, and what Ray adds to its CPU time."""

import itertools
import json
import statistics
import subprocess
import sys
from typing import Any

from fedwright.benchmarks.harness.suite import check
from fedwright.protocol.errors import FedwrightError

DEVICES, QUICK_DEVICES = 1000, 100
ROUNDS, TIMES, QUICK_TIMES = 3, 3, 1
LEAST_SPEED, MOST_CPU = 1.7, 1.1
# Name -> engine, and how many processes do the devices' work.
KINDS = {"local, 1 process": ("local", 1), "Ray, 1 worker": ("ray", 1), "Ray, 2 workers": ("ray", 2)}


def ray_speed(*, quick: bool) -> dict[str, Any]:
    """Seconds and CPU seconds of a round, each kind in turn."""
    devices, times = (QUICK_DEVICES, QUICK_TIMES) if quick else (DEVICES, TIMES)
    rows = [{"engine": name, **_measure(*KINDS[name], devices)} for _ in range(times) for name in KINDS]
    best = {name: _least(rows, name, "round_s") for name in KINDS}
    cpu = {name: _least(rows, name, "round_cpu_s") for name in KINDS}
    speed = best["Ray, 1 worker"] / best["Ray, 2 workers"]
    cost = cpu["Ray, 1 worker"] / cpu["local, 1 process"]
    where = f"simulation of {devices:,} devices"
    checks = [
        check(f"{where}: speed, 2 workers / 1", speed, f">= {LEAST_SPEED}", holds=speed >= LEAST_SPEED),
        check(f"{where}: CPU, Ray / local", cost, f"<= {MOST_CPU}", holds=cost <= MOST_CPU),
    ]
    note = "a round of all devices, the first left out; CPU of the program and of all that Ray started for it"
    return {"tables": {"simulations on Ray": rows}, "checks": checks, "notes": [note]}


def _least(rows: list[dict[str, Any]], name: str, figure: str) -> float:
    return min(float(row[figure]) for row in rows if row["engine"] == name)


def _measure(kind: str, workers: int, devices: int) -> dict[str, float]:
    words = [kind, str(workers), str(devices), str(ROUNDS)]
    command = [sys.executable, "-m", "fedwright.benchmarks.processes.engine_simulation", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FedwrightError(f"a simulation on {kind} failed: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    steps = [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(found)]
    wall, cpu = (statistics.median(column) for column in zip(*steps, strict=True))
    return {"round_s": round(wall, 2), "round_cpu_s": round(cpu, 2)}
