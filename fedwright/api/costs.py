"""`fedwright.predict`: what one training step takes on a board, measured or by its data sheet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedwright.api.graphs import TrainingGraph
from fedwright.device_runtime.emulate.profiles import DeviceProfile, load_profile
from fedwright.device_runtime.profiler.profile import measure_profile
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile, expected_bytes, profile_from_json, work_at
from fedwright.protocol.predictor import predict as predict_step

HERE = "here"
NUMBER_BYTES = 4
# A call of an operator takes about this many cycles before it computes anything.
CALL_CYCLES = 8000
# A data sheet tells the order of magnitude.
SHEET_SPREAD = 2.0
# Memory that copies faster than this is bound by something else.
FAST_COPY_BYTES_PER_S = 10e9


@dataclass(frozen=True)
class StepCost:
    """Seconds and memory of one training step; basis says what they rest on."""

    device: str
    batch: int
    step_s: float
    low_s: float
    high_s: float
    memory_mb: float
    basis: Literal["measured", "data sheet"]

    def __str__(self) -> str:
        """In one line."""
        seconds = f"{self.step_s * 1e3:.3g} ms ({self.low_s * 1e3:.3g} to {self.high_s * 1e3:.3g})"
        return f"{self.device}, batch {self.batch}: {seconds} and {self.memory_mb:.0f} MB per step, by {self.basis}"


def predict(graph: TrainingGraph, *, device: str, batch: int = 32, threads: int = 1) -> StepCost:
    """What a step takes on a device: a name from `fedwright profiles`, the file of `device profile`, or "here"."""
    if batch < 1 or threads < 1:
        raise ConfigError(f"batch is {batch} and threads {threads}, but both must be 1 or more")
    memory_mb = expected_bytes(graph.artifact.manifest, batch) / 1e6
    if device == HERE or device.endswith(".json"):
        profile = measure_profile(threads=threads) if device == HERE else _read(Path(device))
        found = predict_step(profile, graph.artifact.manifest.work, batch=batch)
        return StepCost(device, batch, found.step_s, found.low_s, found.high_s, memory_mb, "measured")
    step_s = _by_sheet(graph.artifact, load_profile(device), batch=batch, threads=threads)
    low_s, high_s = step_s / SHEET_SPREAD, step_s * SHEET_SPREAD
    return StepCost(device, batch, step_s, low_s, high_s, memory_mb, "data sheet")


def _read(file: Path) -> Profile:
    try:
        data = file.read_bytes()
    except OSError as err:
        raise ConfigError(
            f"the profile {file} cannot be read ({err.strerror}); write it with `fedwright device profile --out {file}`"
        ) from err
    return profile_from_json(data)


def _by_sheet(artifact: Artifact, board: DeviceProfile, *, batch: int, threads: int) -> float:
    """Roofline by kind of operator: arithmetic or memory, whichever takes longer, and the calls.

    seconds = sum over kinds of max(flops / F, 4 elements / B) + calls c
    """
    used = min(threads, board.cores.value)
    flops_per_s = board.cpu_gflops.value * 1e9 * used / board.cores.value
    copy = board.copy_bytes_per_s
    bytes_per_s = FAST_COPY_BYTES_PER_S if copy is None else copy.value
    rows = np.array(list(work_at(artifact.manifest.work, batch).values()))
    calls, flops, elements = (rows[:, FEATURES.index(name)] for name in ("calls", "flops", "elements"))
    busy_s = np.maximum(flops / flops_per_s, NUMBER_BYTES * elements / bytes_per_s)
    return float(busy_s.sum() + calls.sum() * CALL_CYCLES / board.clock_hz.value)
