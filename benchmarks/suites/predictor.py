"""`fedwright bench predictor`: predicted against measured steps and memory of whole models that no probe is made of.

Everything is measured in this run, by CPU time with one thread: several passes, each over all probes (as `fedwright
device profile` does) and over each model at several widths and batch sizes, of which the best counts. The best of every
other pass against the best of the rest tells how well anything can be predicted here. Beside the predictor stand a line
through FLOPs and a random forest, both fitted to the same probes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.benchmarks.harness.suite import check, reported
from fedwright.device_runtime.profiler.fit import fit
from fedwright.device_runtime.profiler.measure import ProbeTime, start, time_probes, time_step
from fedwright.device_runtime.profiler.pack import load_probes
from fedwright.device_runtime.profiler.profile import disagreement, merged
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import Artifact, pack
from fedwright.protocol.errors import FedwrightError
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile, Work, expected_bytes, need_bytes, predict, work_at
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

MODELS = ("lenet", "resnet8", "mobilenet-v3", "vit-tiny", "lstm-lm", "mlp", "cnn-hasa", "resnet8-gn")
QUICK = ("lenet", "resnet8", "mlp")
WIDTHS, QUICK_WIDTHS = (0.1, 0.35, 1.0), (0.25, 1.0)
BATCHES = (8, 24, 64)
TIMEOUT_S = 300
PASSES, QUICK_PASSES, TRACES, WINDOWS = 6, 2, 3, 2
MB = 1e6
AS_A_DEVICE = "predictor, two passes"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One model at one width and batch, with its least step time in every other pass and in the rest."""

    model: str
    width: float
    batch: int
    artifact: Artifact
    times_s: tuple[float, float]

    @property
    def measured_s(self) -> float:
        """The lesser of both."""
        return min(self.times_s)


@dataclass(frozen=True)
class Pass:
    """One pass: the probes, the step times of each model [models][batches], CPU seconds that the probes took."""

    probes: list[ProbeTime]
    times: list[list[float]]
    seconds: float


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Calibrate, measure, compare."""
    quick = getattr(args, "quick", False)
    names = getattr(args, "models", None) or (QUICK if quick else MODELS)
    artifacts = [built for name in names for built in _build(name, QUICK_WIDTHS if quick else WIDTHS)]
    trainers = [_trainer(artifact) for _, _, artifact in artifacts]
    passes = [one_pass(trainers, trace=number < TRACES) for number in range(QUICK_PASSES if quick else PASSES)]
    del trainers
    return score(artifacts, passes)


def one_pass(trainers: list[PortableTrainer], *, trace: bool) -> Pass:
    """Probes and models by turns, so that a busy hour of the machine is in both."""
    began_s = time.process_time()
    probes = time_probes(load_probes(), threads=1, trace=trace)
    seconds = time.process_time() - began_s
    times = [[time_step(trainer, batch, threads=1, windows=WINDOWS) for batch in BATCHES] for trainer in trainers]
    return Pass(probes, times, seconds)


def score(artifacts: list[tuple[str, float, Artifact]], passes: list[Pass]) -> dict[str, Any]:
    """What the passes say of the predictor and of those it is compared with."""
    halves = [merged(*(done.probes for done in passes[start::2])) for start in range(2)]
    probes = merged(*(done.probes for done in passes))
    seconds = sum(done.seconds for done in passes)
    kinds, spread = fit(probes)
    profile = Profile("this machine", "onnxruntime", 1, kinds=kinds, spread=spread, repeat=disagreement(*halves))
    times = np.array([done.times for done in passes])
    cases = [
        Case(
            name, width, batch, artifact, (float(times[::2, row, column].min()), float(times[1::2, row, column].min()))
        )
        for row, (name, width, artifact) in enumerate(artifacts)
        for column, batch in enumerate(BATCHES)
    ]
    measured = np.array([case.measured_s for case in cases])
    predicted = {
        "predictor": _predicted(profile, cases),
        AS_A_DEVICE: _predicted(_as_a_device(passes), cases),
        "FLOPs line": _flops_line(probes, cases),
        "random forest": _forest(probes, cases),
    }
    memory = _memory(cases)
    repeat = _shares(np.array([case.times_s[0] for case in cases]), np.array([case.times_s[1] for case in cases]))
    scores = {name: _shares(times, measured) for name, times in predicted.items()}
    rows = [_row(case, predicted, index) for index, case in enumerate(cases)]
    return {
        "seeds": [0],
        "tables": {
            "steps": rows,
            "methods": [{"method": name, **score} for name, score in {**scores, "the same twice": repeat}.items()],
            "memory": memory,
            "calibration": {"seconds": seconds, "repeat": profile.repeat, "spread": profile.spread},
        },
        "shown": ["methods", "memory"],
        "checks": _checks(scores, repeat, memory, seconds),
    }


def _as_a_device(passes: list[Pass]) -> Profile:
    """What `fedwright device profile` would have found in the first two passes: it traces operators in one of them."""
    plain = [replace(timed, operators=[]) for timed in passes[1].probes]
    kinds, spread = fit(merged(passes[0].probes, plain))
    return Profile("this machine", "onnxruntime", 1, kinds=kinds, spread=spread)


def _predicted(profile: Profile, cases: list[Case]) -> Array:
    return np.array([predict(profile, case.artifact.manifest.work, batch=case.batch).step_s for case in cases])


def _build(name: str, widths: tuple[float, ...]) -> list[tuple[str, float, Artifact]]:
    """A model at every width."""
    entry = zoo.MODELS[name]
    built = []
    for width in widths:
        spec = zoo.scaled(ModelSpec(name, entry.example_shape, entry.example_classes), width)
        structure = Structure(spec, optimizer=Optimizer(momentum=0.9))
        built.append((name, width, build(structure, zoo.create(spec, seed=0))))
    return built


def _trainer(artifact: Artifact) -> PortableTrainer:
    trainer = PortableTrainer(artifact)
    start(trainer)
    return trainer


def _row(case: Case, predicted: dict[str, Array], index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"model": case.model, "width": case.width, "batch": case.batch}
    row["measured ms"] = case.measured_s * 1e3
    return row | {f"{name} / measured": float(times[index]) / case.measured_s for name, times in predicted.items()}


def _shares(guess: Array, truth: Array) -> dict[str, float]:
    """Share of the guesses within ten and twenty percent, and their mean relative error."""
    error = np.abs(guess / truth - 1.0)
    return {
        "within 10 %": float(np.mean(error <= 0.1)),
        "within 20 %": float(np.mean(error <= 0.2)),
        "mean error": float(np.mean(error)),
    }


def _totals(work: Work, batch: int) -> Array:
    return np.asarray(np.sum(list(work_at(work, batch).values()), axis=0))


def _flops_line(probes: list[ProbeTime], cases: list[Case]) -> Array:
    """Seconds = slope * FLOPs, with the least relative error over the probes."""
    place = FEATURES.index("flops")
    rows = _probe_totals(probes)[:, place] / np.array([timed.step_s for timed in probes])
    slope = float(rows.sum() / np.square(rows).sum())
    return slope * np.array([_totals(case.artifact.manifest.work, case.batch)[place] for case in cases])


def _forest(probes: list[ProbeTime], cases: list[Case]) -> Array:
    """A random forest from the logarithms of all features to that of the time."""
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(n_estimators=200, random_state=0)
    forest.fit(np.log1p(_probe_totals(probes)), np.log([timed.step_s for timed in probes]))
    rows = np.array([_totals(case.artifact.manifest.work, case.batch) for case in cases])
    return np.asarray(np.exp(forest.predict(np.log1p(rows))))


def _probe_totals(probes: list[ProbeTime]) -> Array:
    work = {probe.name: probe.artifact.manifest.work for probe in load_probes()}
    return np.array([_totals(work[timed.probe], timed.batch) for timed in probes])


def _memory(cases: list[Case]) -> list[dict[str, Any]]:
    """Peak memory above the base of a process that trains, against what was predicted; one process per case.

    Another has a limit of what would be asked for: the runtime's arena grows by doubling and may miss it by a little.
    """
    rows = []
    for case in cases:
        manifest = case.artifact.manifest
        need = need_bytes(manifest, case.batch)
        peak = _peak_bytes(case)
        if peak is None:
            raise FedwrightError(f"{case.model} does not fit into the memory of this machine; free some")
        rows.append(
            {
                "model": case.model,
                "width": case.width,
                "batch": case.batch,
                "peak MB": peak / MB,
                "predicted / peak": expected_bytes(manifest, case.batch) / peak,
                "admitted / peak": need / peak,
                "refused at the limit": _peak_bytes(case, need) is None,
            }
        )
    return rows


def _peak_bytes(case: Case, limit_bytes: int = 0) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifact"
        path.write_bytes(pack(case.artifact))
        words = [sys.executable, "-m", "fedwright.benchmarks.processes.predictor_memory", path, case.batch, limit_bytes]
        command = [str(word) for word in words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        except subprocess.CalledProcessError as err:
            # What native code of another thread cannot get ends its process instead of raising here.
            if limit_bytes and "std::bad_alloc" in err.stderr:
                return None
            last = (err.stderr.strip().splitlines() or ["no message"])[-1]
            raise FedwrightError(f"measuring the memory of {case.model} failed: {last}") from err
    found = json.loads(done.stdout.splitlines()[-1])
    return None if found is None else int(found)


def _checks(
    scores: dict[str, dict[str, float]], repeat: dict[str, float], memory: list[dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    own, device = scores["predictor"], scores[AS_A_DEVICE]
    near = float(np.mean([abs(row["predicted / peak"] - 1) <= 0.2 for row in memory]))
    dead = sum(row["admitted / peak"] < 1.0 for row in memory)
    refused = sum(row["refused at the limit"] for row in memory)
    others = min(scores["FLOPs line"]["mean error"], scores["random forest"]["mean error"])
    ratio = own["mean error"] / others
    return [
        check("steps within 20 %", own["within 20 %"], ">= 0.9", holds=own["within 20 %"] >= 0.9),
        check("steps within 10 %", own["within 10 %"], ">= 0.7", holds=own["within 10 %"] >= 0.7),
        reported("steps within 20 %, two passes as on a device", device["within 20 %"]),
        reported("steps within 10 %, two passes as on a device", device["within 10 %"]),
        check("the same twice within 20 % (the ceiling)", repeat["within 20 %"], "beside it", holds=True),
        check("the same twice within 10 % (the ceiling)", repeat["within 10 %"], "beside it", holds=True),
        check("mean error / best of FLOPs line and random forest", ratio, "< 1", holds=ratio < 1),
        check("peak memory within 20 %", near, ">= 0.8", holds=near >= 0.8),
        check("models admitted that need more than was asked for", dead, "0", holds=dead == 0),
        reported("models admitted that a limit of just that much stops", refused),
        check("CPU seconds of calibration", seconds, "< 60", holds=seconds < 60),
    ]
