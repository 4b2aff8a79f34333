"""One simulation whose server is this process: its CPU time per round, its memory, and the bytes of each device."""

import json
import sys
import tempfile
import time
from typing import Any

import numpy as np

from fedwright.device_runtime.facts import peak_rss_bytes
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds import events
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.partition import Split, by_iid
from fedwright.simulation.simulate import simulate

# One step of eight samples, and two to measure with.
SAMPLES, BATCH = 10, 8
INPUT = (3, 32, 32)


def main(devices: int, model: str, rounds: int) -> dict[str, Any]:
    """Simulate, and say what the server used."""
    marks: list[float] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.RoundClosed):
            marks.append(time.process_time())

    with tempfile.TemporaryDirectory(prefix="fedwright-growth-") as folder:
        data: dict[str, Any] = {
            "run": {"name": "growth", "seed": 1, "rounds": rounds, "folder": folder},
            "model": {"model": model},
            "method": {"name": "fedavg"},
            "train": {"batch": BATCH},
            "update": {"evaluate": False},
            "simulate": {"evaluate_every": 0, "processes": 2},
            "export": {"global_model": False},
        }
        config = config_from_dict(data, where="suite growth")
        before = _peak_mb()
        found = simulate(config, json.dumps(data), dealt=_images(devices), observer=note)
    records = list(found.outcome.devices.values())
    sent = sum(record.bytes_up + record.bytes_down for record in records)
    return {
        "server CPU s": (marks[-1] - marks[0]) / (rounds - 1),
        "server MB more": _peak_mb() - before,
        "bytes per device": sent / len(records) / rounds,
    }


def _images(devices: int) -> Dealt:
    rng = np.random.default_rng(0)
    rows = devices * SAMPLES
    shares = by_iid(rows, devices, rng=rng, split=Split(test=0.2))
    return Dealt(rng.random((rows, *INPUT), np.float32), rng.integers(0, 10, rows), 10, shares)


def _peak_mb() -> float:
    return peak_rss_bytes() / 1e6


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))) + "\n")
