"""Times probes with the real training backend: every operator by the runtime's own clock, every step by CPU time."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.device_runtime.profiler.pack import Probe
from fedwright.device_runtime.train import session as sessions
from fedwright.device_runtime.train.base import Tensors
from fedwright.device_runtime.train.blocked import PART, PREFIX
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import TensorSpec
from fedwright.protocol.operator_costs import Shape, features

WINDOWS = 3
# A window this long averages over what a busy machine does to single steps, so that long and short ones compare.
WINDOW_S = 0.002
TRACED_STEPS = 3
WARM_STEPS = 2
# A longer step fills the caches by itself.
WARM_S = 0.005
_EVENT = "_kernel_time"


@dataclass(frozen=True)
class OperatorTime:
    """One operator call of a probe: its kind, its FEATURES and the least time it took."""

    kind: str
    amounts: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class ProbeTime:
    """One probe at one batch size: its operators, and the least time of a whole step without any tracing."""

    probe: str
    batch: int
    operators: list[OperatorTime]
    step_s: float


def time_probe(probe: Probe, *, threads: int, provider: str = "cpu", trace: bool = True) -> list[ProbeTime]:
    """A probe at each of its batch sizes: whole steps, and then operators unless they are known already."""
    trainer = PortableTrainer(probe.artifact, threads=threads, provider=provider)
    start(trainer)
    plain = [time_step(trainer, batch, threads=threads) for batch in probe.batches]
    del trainer
    traced = trace_steps(probe, threads=threads, provider=provider) if trace else [[] for _ in probe.batches]
    return [
        ProbeTime(probe.name, batch, operators, step_s)
        for batch, step_s, operators in zip(probe.batches, plain, traced, strict=True)
    ]


def time_step(trainer: PortableTrainer, batch: int, *, threads: int, windows: int = WINDOWS) -> float:
    """The time of one step in the best of several windows.

    With one thread that is CPU time, which other processes lengthen least.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    data = make_batch(trainer, batch)
    for _ in range(WARM_STEPS):
        began = clock()
        trainer.step(data, learning_rate=0.0, seed=0)
        if clock() - began > WARM_S:
            break
    best = float("inf")
    for _ in range(windows):
        began, steps, spent = clock(), 0, 0.0
        while spent < WINDOW_S:
            trainer.step(data, learning_rate=0.0, seed=0)
            steps, spent = steps + 1, clock() - began
        best = min(best, spent / steps)
    return best


def make_batch(trainer: PortableTrainer, batch: int) -> Tensors:
    """Random examples in the shapes that the manifest names."""
    rng = np.random.default_rng(0)
    return {spec.name: _random(spec, batch, trainer.manifest.classes, rng) for spec in trainer.manifest.batch}


def _random(spec: TensorSpec, batch: int, classes: int, rng: np.random.Generator) -> Any:
    shape = [batch if size == -1 else size for size in spec.shape]
    if spec.dtype == "float32":
        return rng.standard_normal(shape, dtype=np.float32)
    return rng.integers(0, classes, shape).astype(spec.dtype)


def start(trainer: PortableTrainer) -> None:
    """Random weights of the usual size: gradients that vanish are slow on some processors."""
    rng = np.random.default_rng(0)
    weights = {}
    for slot in trainer.manifest.slots:
        if slot.role != "optimizer":
            scale = 1.0 / np.sqrt(max(1, int(np.prod(slot.shape[1:]))))
            value = rng.standard_normal(slot.shape) * scale if len(slot.shape) > 1 else np.ones(slot.shape)
            weights[slot.name] = value.astype(slot.dtype)
    trainer.load(weights)


def trace_steps(probe: Probe, *, threads: int, provider: str = "cpu") -> list[list[OperatorTime]]:
    """For each batch size, every operator of the probe's step with its least time."""
    with tempfile.TemporaryDirectory(prefix="fedwright-profile-") as folder:
        with sessions.traced(Path(folder) / "trace"):
            trainer = PortableTrainer(probe.artifact, threads=threads, provider=provider)
        start(trainer)
        for batch in probe.batches:
            data = make_batch(trainer, batch)
            for _ in range(WARM_STEPS + TRACED_STEPS):
                trainer.step(data, learning_rate=0.0, seed=0)
        events = json.loads(Path(trainer.end_trace()).read_text())
    return _operators(events, len(probe.batches))


def _operators(events: list[dict[str, Any]], batches: int) -> list[list[OperatorTime]]:
    """The least time of each operator in each of the equal parts that a trace of several batch sizes falls into."""
    runs: dict[str, list[dict[str, Any]]] = {}
    inside = -1
    for event in sorted((e for e in events if e["name"].endswith(_EVENT)), key=lambda e: (e["ts"], -e["dur"])):
        # What runs inside a loop is part of the loop's own time.
        if event["ts"] < inside:
            continue
        if event["args"]["op_name"] == "Scan":
            inside = event["ts"] + event["dur"]
        runs.setdefault(event["name"], []).append(event)
    _join_blocked(runs)
    found: list[list[OperatorTime]] = [[] for _ in range(batches)]
    for seen in runs.values():
        steps = len(seen) // batches
        for part in range(batches if steps else 0):
            best = min(seen[part * steps : (part + 1) * steps], key=lambda event: int(event["dur"]))
            args = best["args"]
            kind, amounts = features(args["op_name"], _shapes(args, "input"), _shapes(args, "output"))
            found[part].append(OperatorTime(kind, amounts, max(0.5, float(best["dur"])) * 1e-6))
    return found


def _join_blocked(runs: dict[str, list[dict[str, Any]]]) -> None:
    """The time of all nodes that stand in for a convolution is that of the one among them."""
    parts = [name for name in runs if name.startswith(PREFIX)]
    whole = {name.split(PART)[0]: name for name in parts if runs[name][0]["args"]["op_name"] == "Conv"}
    for name in parts:
        convolution = whole.get(name.split(PART)[0], name)
        if name != convolution:
            for event, more in zip(runs[convolution], runs.pop(name), strict=False):
                event["dur"] += more["dur"]


def _shapes(args: dict[str, Any], side: str) -> list[Shape]:
    return [tuple(shape) for entry in args.get(f"{side}_type_shape", []) for shape in entry.values()]


Progress = Callable[[int, int, str], None]
"""Called with (done, of, what)."""


def time_probes(
    probes: list[Probe],
    *,
    threads: int,
    provider: str = "cpu",
    trace: bool = True,
    progress: Progress | None = None,
) -> list[ProbeTime]:
    """One pass over all probes."""
    found = []
    for index, probe in enumerate(probes):
        if progress is not None:
            progress(index, len(probes), probe.name)
        found += time_probe(probe, threads=threads, provider=provider, trace=trace)
    return found
