"""The suite devices: time, CPU, memory, bytes and energy of every device and round, beside what was predicted."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.device_rounds import rows_of_run
from fedwright.benchmarks.harness.suite import check, mean, reported
from fedwright.device_runtime.train.loop import total_steps
from fedwright.protocol.errors import FedwrightError
from fedwright.protocol.predictor import Profile, expected_bytes, predict, profile_from_json
from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.rounds.store.base import Planned, Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder, folder_of
from fedwright.simulation.demo import DemoDevice, DemoOptions, DemoResult, demo_config, run_demo

# FedConv, Table II, MNIST at alpha 0.05: mean seconds of a device per round, and GB of memory.
PAPER = {
    "standalone": (3.87, 2.14),
    "fedavg": (7.05, 1.90),
    "fedmd": (44.34, 2.71),
    "heterofl": (6.96, 2.63),
    "fedrolex": (6.92, 2.63),
    "fedconv": (5.96, 2.52),
}
QUICK = ("heterofl", "fedconv")
WITHIN = 0.5


@dataclass(frozen=True)
class Expected:
    """What the server could know beforehand of one round of a device."""

    cpu_s: float
    memory_mb: float


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run each method on a fleet of emulated boards, each with its limits; or tell of a run that has been."""
    if getattr(args, "run_folder", None) is not None:
        return _of_run(args.run_folder)
    methods = tuple(getattr(args, "methods", None) or (QUICK if args.quick else PAPER))
    profile = _profile()
    fleet = getattr(args, "fleet", None)
    found = {method: _measure(method, profile, fleet, quick=args.quick) for method in counted(methods, "methods")}
    tables = {
        "mean device beside FedConv's Table II (MNIST, on the boards' GPUs)": [
            _summary(method, own.devices) for method, own in found.items()
        ]
    }
    tables |= {f"{method}: every device, per round": own.devices for method, own in found.items()}
    tables |= {f"{method}: every device and round": own.rounds for method, own in found.items()}
    every = [row for own in found.values() for row in own.devices]
    known = [row for row in every if row["predicted training CPU s"]]
    middle = float(np.median([row["training CPU s"] / row["predicted training CPU s"] for row in known]))
    holds = 1 - WITHIN <= middle <= 1 + WITHIN
    return {
        "seeds": [1],
        "limits": found[methods[0]].limits,
        "tables": tables,
        "checks": [check("training CPU seconds, measured / predicted, median", middle, f"1 +- {WITHIN}", holds=holds)],
        "shown": [name for name in tables if not name.endswith("device and round")],
    }


def _of_run(folder: Path) -> dict[str, Any]:
    """Real devices, or emulated ones of another day: what their agents measured."""
    rows = rows_of_run(folder)
    known = [row["training s"] / row["predicted training s"] for row in rows if row["predicted training s"]]
    checks = [reported("training seconds, measured / predicted, median", float(np.median(known)))] if known else []
    return {"seeds": [], "tables": {"every device and round": rows}, "checks": checks}


@dataclass(frozen=True)
class _Found:
    """Rows of all devices, rows of all rounds, and the limits that held them."""

    devices: list[dict[str, Any]]
    rounds: list[dict[str, Any]]
    limits: str


def _measure(method: str, profile: Profile, fleet: str | None, *, quick: bool) -> _Found:
    with tempfile.TemporaryDirectory(prefix="fedwright-devices-") as name:
        options = _options(method, Path(name) / "kept", quick=quick)
        if fleet is not None:
            options = replace(options, fleet=fleet)
        result = run_demo(options)
        expected = _expected(options, profile)
        rounds = rows_of_run(_run_folder(options).path)
    rows = [
        _row(device, own, expected.get(device), [row for row in rounds if row["device"] == device])
        for device, own in result.devices.items()
    ]
    return _Found(rows, rounds, _limits(result))


def _run_folder(options: DemoOptions) -> RunFolder:
    assert options.keep is not None
    config, _ = demo_config(options, options.keep, "embedded")
    return folder_of(config)


def _options(method: str, folder: Path, *, quick: bool) -> DemoOptions:
    if quick:
        return DemoOptions(method, devices=8, rounds=3, keep=folder)
    return DemoOptions(method, devices=20, rounds=10, keep=folder, fleet="fedconv")


def _expected(options: DemoOptions, profile: Profile) -> dict[str, Expected]:
    """Predicted from the graphs that the devices were sent in the last round."""
    folder = _run_folder(options)
    store = SqliteRoundStore(folder.store)
    try:
        position = Position(options.rounds, 0)
        plan, replies = store.plan(position) or [], store.replies(position)
    finally:
        store.close()
    cost = _cost(folder, profile)
    samples = {task: reply.update.stats.samples for task, reply in replies.items() if reply.update is not None}
    return {one.device: cost(one, samples[one.task.task]) for one in plan if one.task.task in samples}


def _profile() -> Profile:
    """This machine as an agent measures it, in a process that holds nothing else."""
    with tempfile.TemporaryDirectory(prefix="fedwright-devices-") as folder:
        command = [sys.executable, "-m", "fedwright", "device", "profile", "--threads", "1", "--state", folder]
        done = subprocess.run([*command, "--json"], capture_output=True)
        if done.returncode:
            raise FedwrightError(f"this machine cannot be profiled: {done.stderr.decode().strip()[-300:]}")
        return profile_from_json(done.stdout)


def _cost(folder: RunFolder, profile: Profile) -> Callable[[Planned, int], Expected]:
    builder = Builder(folder.artifacts)

    def cost(planned: Planned, samples: int) -> Expected:
        recipe = planned.task.recipe
        manifest = builder.build(planned.assignment.structure).manifest
        step_s = predict(profile, manifest.work, batch=recipe.batch).step_s
        memory = profile.base_bytes + expected_bytes(manifest, recipe.batch)
        return Expected(step_s * total_steps(recipe, samples), memory / 1e6)

    return cost


def _row(device: str, own: DemoDevice, expected: Expected | None, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    record, share = own.record, own.exit.enforced.cpu_share
    worked = max(1, record.rounds)
    return {
        "device": device,
        "profile": own.profile,
        "width": record.width,
        "s per round": record.round_s,
        "training s": mean(row["training s"] for row in rounds) if rounds else None,
        # A task that is over within one period of the quota is not slowed down.
        "predicted training s": None if expected is None else expected.cpu_s / share,
        "CPU s": record.cpu_s / worked,
        "training CPU s": mean(row["training CPU s"] for row in rounds) if rounds else None,
        "predicted training CPU s": None if expected is None else expected.cpu_s,
        "peak MB": record.peak_rss_bytes / 1e6,
        "predicted MB": None if expected is None else expected.memory_mb,
        "kB per round": (record.bytes_up + record.bytes_down) / worked / 1e3,
        "J per round": None if record.energy_j is None else record.energy_j / worked,
    }


def _summary(method: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    seconds, memory = PAPER.get(method, (None, None))
    return {
        "method": method,
        "s per round": mean(row["s per round"] for row in rows),
        "paper s per round": seconds,
        "memory GB": mean(row["peak MB"] for row in rows) / 1e3,
        "paper memory GB": memory,
        "kB per round": mean(row["kB per round"] for row in rows),
    }


def _limits(result: DemoResult) -> str:
    enforced = next(iter(result.devices.values())).exit.enforced
    return (
        f"memory by RLIMIT_DATA, CPU by {enforced.cpu_mechanism}, {enforced.slowdown:.1f} times slower than the boards"
    )
