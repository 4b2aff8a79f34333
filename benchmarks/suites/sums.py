"""The suite sums: what sums of changes cost a device, beside plain updates and beside Flower's SecAgg+."""

import argparse
import json
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.suite import check
from fedwright.benchmarks.harness.sum_costs import SumCost, measure, plain
from fedwright.benchmarks.peers import flower
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.secure.graph import NEIGHBOURS

DEVICES = (10, 100, 1000)
LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000)
MOST_CPU_RATIO, MOST_BYTES_RATIO = 0.5, 1.3
# Below this the roster, with the certificates of all members, is more than the model.
LEAST_CHECKED = 1_000_000
WAIT_S = 1200.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Each size with plain float32 updates, with sums, with sums among certificates, and with Flower if it is there."""
    lengths = LENGTHS[:3] if args.quick else LENGTHS
    python, notes = _flower()
    rows, checks = [], []
    for length in lengths:
        in_the_open = plain(length)
        for devices in DEVICES:
            ours = measure(devices, length, enrolled=False)
            signed = measure(devices, length, enrolled=True)
            theirs = None if python is None else _flower_cost(python, devices, length)
            rows.append(_row(devices, length, in_the_open, {"sum": ours, "signed sum": signed, "Flower": theirs}))
            checks += _checks(devices, length, in_the_open, ours, signed, theirs)
    return {"seeds": [1], "tables": {"one device in one sum, nobody leaves": rows}, "notes": notes, "checks": checks}


def _flower() -> tuple[Path | None, list[str]]:
    try:
        python = flower.environment()
    except ConfigError as err:
        return None, [str(err)]
    about = f"Flower {flower.version(python)}: SecAgg+ of its client, {NEIGHBOURS} neighbours, without signatures"
    return python, [about]


def _flower_cost(python: Path, devices: int, length: int) -> SumCost:
    script = resources.files("fedwright.benchmarks.peers") / "flower_app" / "sum_client.py"
    words = [str(python), str(script), str(devices), str(length), str(min(devices, NEIGHBOURS + 1))]
    said = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=WAIT_S).stdout)
    return SumCost(said["cpu_s"], int(said["sent"]), int(said["received"]))


def _row(devices: int, length: int, in_the_open: SumCost, costs: dict[str, SumCost | None]) -> dict[str, Any]:
    row: dict[str, Any] = {"devices": devices, "parameters": length}
    row |= {"plain CPU ms": 1e3 * in_the_open.cpu_s, "plain kB": in_the_open.total_bytes / 1e3}
    for name, cost in costs.items():
        row[f"{name} CPU ms"] = None if cost is None else 1e3 * cost.cpu_s
        row[f"{name} kB"] = None if cost is None else cost.total_bytes / 1e3
    return row


def _checks(
    devices: int, length: int, in_the_open: SumCost, ours: SumCost, signed: SumCost, theirs: SumCost | None
) -> list[dict[str, Any]]:
    found = []
    place = f"{devices} devices, {length} parameters"
    if length >= LEAST_CHECKED:
        ratio = ours.total_bytes / in_the_open.total_bytes
        found.append(check(f"bytes, {place}", ratio, f"<= {MOST_BYTES_RATIO}", holds=ratio <= MOST_BYTES_RATIO))
    if theirs is not None:
        for name, cost in (("", ours), ("signed, ", signed)):
            share = cost.cpu_s / theirs.cpu_s
            limit = f"<= {MOST_CPU_RATIO}"
            found.append(check(f"CPU of Flower's, {name}{place}", share, limit, holds=share <= MOST_CPU_RATIO))
    return found
