"""One simulation on an engine: the seconds, and the CPU seconds of all its processes, at the end of each round.

Called with the engine, how many processes do the work of devices, how many devices, and how many rounds.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import psutil

from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds import events
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.partition import Split, by_iid
from fedwright.simulation.simulate import simulate

SHAPE, CLASSES, SAMPLES = (1, 16, 16), 10, 40


def main(kind: str, workers: int, devices: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds and CPU seconds after each round."""
    rng = np.random.default_rng(0)
    rows = devices * SAMPLES
    x, y = rng.random((rows, *SHAPE), np.float32), rng.integers(0, CLASSES, rows)
    marks: list[tuple[float, float]] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.RoundClosed):
            marks.append((time.monotonic(), _cpu_s()))

    with tempfile.TemporaryDirectory(prefix="fedwright-engine-") as folder:
        engine: dict[str, Any] = {"kind": kind}
        engine |= {"address": "local", "workers": workers} if kind == "ray" else {}
        data: dict[str, Any] = {
            "run": {"name": "engine", "seed": 1, "rounds": rounds, "folder": folder},
            "model": {"model": "lenet"},
            "train": {"epochs": 2, "batch": 8},
            "method": {"name": "fedavg"},
            "update": {"evaluate": False},
            "engine": engine,
            "simulate": {"evaluate_every": 0, "processes": workers},
            "export": {"global_model": False},
        }
        config = config_from_dict(data, where="bench scale")
        shares = by_iid(rows, devices, rng=rng, split=Split(test=0.2))
        simulate(config, json.dumps(data), dealt=Dealt(x, y, CLASSES, shares), observer=note)
    return marks


def _cpu_s() -> float:
    """Of this process and all that it started and that still are."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.write(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))) + "\n")
