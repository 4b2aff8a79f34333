"""One simulation in this process: CPU time until its first round ended, of each further one, and its memory, as JSON.

Takes what `benchmarks/peers/pfl_simulation.py` takes.
"""

import json
import os
import sys
import tempfile
from typing import Any

import numpy as np

from fedwright.device_runtime.facts import peak_rss_bytes
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds import events
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.partition import Share
from fedwright.simulation.simulate import simulate


def main(given: dict[str, Any]) -> dict[str, Any]:
    """Simulate, and say what that took; devices are measured once, when the last round is over."""
    arrays = np.load(given["data"])
    none = np.empty(0, np.int64)
    # One row to measure with, so that every device has something to say at the end.
    shares = {f"device-{n:06d}": Share(own, none, own[:1]) for n, own in enumerate(arrays["rows"])}
    dealt = Dealt(arrays["x"], arrays["y"], given["model"]["classes"], shares)
    ends: list[float] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.RoundClosed):
            ends.append(cpu_s())

    with tempfile.TemporaryDirectory(prefix="fedwright-beside-") as folder:
        data: dict[str, Any] = {
            "run": {"name": "beside", "seed": 1, "rounds": given["rounds"], "folder": folder},
            "model": {"model": given["model"]["model"]},
            "method": {"name": "fedavg"},
            "fleet": {"sample_ratio": given["drawn"] / len(shares)},
            "train": {"batch": given["batch"], "learning_rate": given["learning_rate"]},
            "update": {"evaluate": False},
            "simulate": {"evaluate_every": 0, "processes": 0, "count_bytes": False},
            "export": {"global_model": False},
        }
        simulate(config_from_dict(data, where="suite simulate"), json.dumps(data), dealt=dealt, observer=note)
    return {"first_cpu_s": ends[0], "rounds_cpu_s": np.diff(ends).tolist(), "peak_bytes": peak_rss_bytes()}


def cpu_s() -> float:
    """CPU time of this process."""
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
