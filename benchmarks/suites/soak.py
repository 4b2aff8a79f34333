"""`fedwright bench soak`: memory of server, devices and broker over thousands of rounds of a small model.

A round every ten seconds for eight hours is 2,880 rounds; here they follow one another at once. Everything is real: a
broker, `fedwright server run`, and agents with their training processes. Memory is sampled all the time and a line is
laid through what comes after a warm-up of a third of the rounds: what it rises by until the end is the growth. That is
of a process's own memory: how many pages of its program are in memory too is what other programs leave of them.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedwright.benchmarks.harness.chaos_fleet import ChaosFleet, Plan, chaos_fleet
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore

ROUNDS = 2880
QUICK_ROUNDS = 240
WARM_UP = 1 / 3
SAMPLE_S = 0.5
MB = 1e6
# Growth that is noise: of small processes in MB, of large ones as a share.
NOISE_MB, NOISE_RATIO = 1.0, 0.03

Sample = tuple[int, float, float]
"""The round, the MB that are resident, and those of them that are the process's own."""
Samples = dict[str, list[Sample]]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One run from its first round to its last."""
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    plan = Plan(rounds=rounds, epochs=1, watched=False)
    with tempfile.TemporaryDirectory(prefix="fedwright-soak-") as place, chaos_fleet(Path(place), plan) as fleet:
        samples = sampled(fleet)
        fleet.finish()
        done = _rounds(fleet)
        sizes = dict(_sizes(Path(place)))
    rows = [_row(name, found, rounds) for name, found in samples.items()]
    return {
        "tables": {
            "memory": rows,
            "files": [{"folder": name, "MB": round(size / MB, 2)} for name, size in sizes.items()],
            "samples": {name: found[:: max(1, len(found) // 200)] for name, found in samples.items()},
        },
        "checks": [
            {"name": "rounds", "value": done, "target": rounds, "holds": done == rounds},
            *(_check(row) for row in rows),
        ],
    }


def sampled(fleet: ChaosFleet) -> Samples:
    """The memory of every process while the run goes on."""
    samples: Samples = {}
    while fleet.running(SAMPLE_S):
        number = _rounds(fleet)
        for name, pid in fleet.processes().items():
            for part, memory in _memory(name, pid):
                samples.setdefault(part, []).append((number, memory.rss / MB, (memory.rss - memory.shared) / MB))
    return samples


def _memory(name: str, pid: int) -> Iterator[tuple[str, Any]]:
    """Bytes of a process, and of the one beside it that trains."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # One that has just ended and was not waited for yet has no memory.
        if (memory := process.memory_info()).rss:
            yield name, memory
        for child in process.children():
            yield f"{name}: training", child.memory_info()


def _rounds(fleet: ChaosFleet) -> int:
    if not fleet.run_folder.store.exists():
        return 0
    store = SqliteRoundStore(fleet.run_folder.store)
    try:
        return max((stage.position.round for stage in store.closed()), default=0)
    finally:
        store.close()


def growth(found: Sequence[tuple[int, float]], rounds: int) -> float:
    """By how much a line through all that comes after the warm-up rises until the end."""
    warm = np.array([(number, size) for number, size in found if number > WARM_UP * rounds], float)
    if len(np.unique(warm[:, 0])) < 2 if len(warm) else True:
        return float("nan")
    slope, _ = np.polyfit(warm[:, 0], warm[:, 1], 1)
    return float(slope * (warm[-1, 0] - warm[0, 0]))


def _row(name: str, found: Sequence[Sample], rounds: int) -> dict[str, Any]:
    warm = [sample for sample in found if sample[0] > WARM_UP * rounds] or [(0, float("nan"), float("nan"))]
    return {
        "process": name,
        "samples": len(found),
        "MB after warm-up": round(warm[0][1], 2),
        "MB at the end": round(warm[-1][1], 2),
        "most MB": round(max(resident for _, resident, _ in found), 2),
        "own MB after warm-up": round(warm[0][2], 2),
        "own MB at the end": round(warm[-1][2], 2),
        "growth MB": round(growth([(number, own) for number, _, own in found], rounds), 3),
    }


def _check(row: Mapping[str, Any]) -> dict[str, Any]:
    limit = max(NOISE_MB, NOISE_RATIO * row["own MB after warm-up"])
    return {
        "name": f"{row['process']}: growth after warm-up, MB",
        "value": row["growth MB"],
        "target": f"<= {limit:.1f}",
        "holds": row["growth MB"] <= limit,
    }


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Bytes on disk of the run's folder and of the devices' state."""
    for name in ("disk", "state"):
        yield name, sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
