"""One simulation of very many devices of which each round draws few: when it begins, and its memory round by round."""

import contextlib
import json
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

FEATURES, CLASSES, SAMPLES = 8, 3, 10


class Enough(Exception):
    """All rounds that are looked at are closed; what follows measures every device."""


def main(devices: int, per_round: int, rounds: int) -> dict[str, Any]:
    """Seconds of CPU until the first tasks go out, and MB after each round."""
    rng = np.random.default_rng(0)
    rows = devices * SAMPLES
    x, y = rng.random((rows, FEATURES), np.float32), rng.integers(0, CLASSES, rows)
    before_s, begun_s, memory = time.process_time(), list[float](), list[float]()

    def note(event: events.Event) -> None:
        if isinstance(event, events.StagePlanned):
            begun_s.append(time.process_time())
        elif isinstance(event, events.RoundClosed):
            memory.append(psutil.Process().memory_info().rss / 1e6)
            if event.round == rounds:
                raise Enough

    with tempfile.TemporaryDirectory(prefix="fedwright-drawn-") as folder:
        data: dict[str, Any] = {
            "run": {"name": "drawn", "seed": 1, "rounds": rounds, "folder": folder},
            "fleet": {"per_round": per_round},
            "model": {"model": "mlp"},
            "method": {"name": "fedavg"},
            "update": {"evaluate": False},
            "simulate": {"evaluate_every": 0, "processes": 0},
            "export": {"global_model": False},
        }
        config = config_from_dict(data, where="bench scale")
        shares = by_iid(rows, devices, rng=rng, split=Split(test=0.2))
        with contextlib.suppress(Enough):
            simulate(config, json.dumps(data), dealt=Dealt(x, y, CLASSES, shares), observer=note)
    return {"start_cpu_s": round(begun_s[0] - before_s, 2), "memory_mb": [round(one, 1) for one in memory]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:]))) + "\n")
