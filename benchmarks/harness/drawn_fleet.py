"""Simulations of very many devices of which each round draws a hundred: how long they take to begin, and memory."""

import json
import subprocess
import sys
from typing import Any

from fedwright.benchmarks.harness.suite import check
from fedwright.protocol.errors import FedwrightError

DEVICES, QUICK_DEVICES = (10_000, 100_000), (1000, 4000)
PER_ROUND, ROUNDS = 100, 8
MOST_START_S = 20.0
# Between the second round, when all that lasts is there, and the last.
MOST_GROWTH = 1.02


def drawn(*, quick: bool) -> dict[str, Any]:
    """CPU seconds until the first tasks go out, and how memory grows with rounds, by devices."""
    rows = [_measure(devices) for devices in (QUICK_DEVICES if quick else DEVICES)]
    last = rows[-1]
    growth = last["MB, last round"] / last["MB, second round"]
    name = f"{last['devices']:,} simulated devices, {PER_ROUND} per round"
    start_s = last["CPU s until the first tasks"]
    checks = [
        check(f"{name}: start, CPU s", start_s, f"<= {MOST_START_S:g}", holds=start_s <= MOST_START_S),
        check(f"{name}: memory, last / second round", growth, f"<= {MOST_GROWTH}", holds=growth <= MOST_GROWTH),
    ]
    return {"tables": {"simulated devices, drawn a few at a time": rows}, "checks": checks, "notes": []}


def _measure(devices: int) -> dict[str, Any]:
    words = [str(number) for number in (devices, PER_ROUND, ROUNDS)]
    command = [sys.executable, "-m", "fedwright.benchmarks.processes.drawn_devices", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FedwrightError(f"a simulation of {devices} devices failed: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "devices": devices,
        "CPU s until the first tasks": found["start_cpu_s"],
        "MB, second round": found["memory_mb"][1],
        "MB, last round": found["memory_mb"][-1],
    }
