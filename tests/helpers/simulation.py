"""Small simulated runs, and the same runs by real agents over a broker in memory."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.describe.hidden_counts import HiddenCounts, counts_of, without_counts
from fedwright.server_runtime.config import RunConfig, config_from_text
from fedwright.simulation import datasets
from fedwright.simulation.datasets import Limit
from fedwright.simulation.dealing import Dealt
from helpers.fleet import FLEET, LinkMaker, Running


def make_config(folder: Path, *, rounds: int = 2, processes: int = 0, **sections: Any) -> tuple[RunConfig, str]:
    """A config of a small run on digits, as data and as text; `sections` adds or replaces keys."""
    tables: dict[str, dict[str, Any]] = {
        "run": {"name": "run", "folder": str(folder), "rounds": rounds, "seed": 5},
        "fleet": {"devices": 4, "name": "test"},
        "model": {"model": "cnn-small"},
        "method": {"name": "fedavg"},
        "train": {"batch": 32, "learning_rate": 0.1},
        "export": {"global_model": False},
        "simulate": {"devices": 4, "rows": 320, "alpha": 1.0, "evaluate_every": 1, "processes": processes},
    }
    for name, changes in sections.items():
        tables[name] = {**tables.get(name, {}), **changes}
    lines = []
    for name, keys in tables.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
    text = "\n".join(lines) + "\n"
    return config_from_text(text, where="test"), text


def public_file(folder: Path, *, rows: int = 60, dataset: str = "digits") -> dict[str, str]:
    """A section [public] that names a file with some examples of a data set."""
    data = datasets.load(dataset, limit=Limit(train=rows, test=1))
    np.savez(folder / "public.npz", x=data.x_train, y=data.y_train)
    return {"file": str(folder / "public.npz")}


def local_data(dealt: Dealt) -> dict[str, LocalData]:
    """Each device's data as its agent would hold it."""
    found = {}
    for device, share in dealt.shares.items():
        y = dealt.y[share.train]
        counts = tuple(np.bincount(y, minlength=dealt.classes).tolist())
        rest = (dealt.x[share.test], dealt.y[share.test], dealt.classes, counts, dealt.input_shape)
        found[device] = LocalData(dealt.x[share.train], y, *rest)
    return found


@contextmanager
def run_agents(
    broker: LinkMaker, folder: Path, data: dict[str, LocalData], *, fleets: dict[str, str] | None = None
) -> Iterator[None]:
    """Real agents in threads, one per device; `fleets` says which serve behind an edge."""
    with ExitStack() as stack:
        for device, own in data.items():
            fleet = (fleets or {}).get(device, FLEET)
            stack.callback(Running(broker, device, folder, data=own, fleet=fleet).stop)
        yield


@contextmanager
def run_hiding_agents(broker: LinkMaker, folder: Path, data: dict[str, LocalData]) -> Iterator[None]:
    """Real agents that tell nothing of their data but sums that hide it."""
    with ExitStack() as stack:
        for device, own in data.items():
            hidden = HiddenCounts(device, counts_of(own.summary()), folder=folder / device)
            told = without_counts(own.summary())
            stack.callback(Running(broker, device, folder, data=own, told=told, hidden=hidden).stop)
        yield


def _toml(value: Any) -> str:
    """A value in TOML: inline tables, else as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
