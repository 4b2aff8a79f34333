"""`fedwright bench train-step`: a training step in plain ONNX against other runtimes, the same model in the same run.

Times are the least CPU time of one step, batch 32, SGD with momentum, OpenMP waiting passively. Portable and torch take
turns in one process; torch.compile (model and loss, measured once it has compiled), JAX (jit) and onnxruntime-training
(whose SGD has no momentum) run one after the other in processes and environments of their own, with one thread.
Peak memory comes from a process per backend.
"""

import argparse
import copy
import importlib.metadata
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedwright.benchmarks.harness.step_models import SPECS
from fedwright.benchmarks.peers import runtimes
from fedwright.protocol import tensors
from fedwright.protocol.artifact import pack
from fedwright.protocol.errors import ConfigError, FedwrightError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.export import model_inputs
from fedwright.server_runtime.artifacts.symbolics.registry import quiet_tracing
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from fedwright.server_runtime.zoo.adapters import adapter_names

BATCH = 32
MOMENTUM = 0.9
PEAK_STEPS = 6
# What JAX and onnxruntime-training read.
OPSET = 17
TIMEOUT_S = 1800
AGENT = "fedwright.device_runtime.agent"
IMPORT_CPU_S, IMPORT_RSS_MB, INSTALL_MB = 0.25, 60.0, 130.0
BEST_PEER, EAGER_MEAN, EAGER_WALL = 1.0, 0.8, 1.0
PEERS = (runtimes.COMPILED, runtimes.JAX, runtimes.TRAINING)
MB = 1e6
# What only an older Python needs has a further condition before it.
_DEVICE_EXTRA = re.compile(r";\s*extra == ['\"]device['\"]")
# The largest peak memory, portable / torch.
PEAK_RATIOS = {
    "lenet": 0.35,
    "resnet8": 0.35,
    "resnet18": 0.65,
    "mobilenet-v2": 0.35,
    "mobilenet-v3": 0.35,
    "vit-tiny": 0.35,
    "lstm-lm": 0.35,
    "gru-lm": 0.35,
    "mlp-lora": 0.35,
}


@dataclass(frozen=True)
class Plan:
    """How long each backend is measured in a pass, how many passes, and which peers."""

    seconds: float
    passes: int
    threads: tuple[int, ...]
    peers: tuple[str, ...]


class WithLoss(nn.Module):
    """A model and its loss as one graph, for runtimes that differentiate graphs; its weights begin with `module.`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy; labels come last."""
        *inputs, labels = batch
        return nn.functional.cross_entropy(self.module(*inputs), labels)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every model asked for and check it against its target."""
    models = list(getattr(args, "models", None) or PEAK_RATIOS)
    given = getattr(args, "peers", None)
    plan = Plan(
        seconds=1.5 if getattr(args, "quick", False) else 8.0,
        passes=1 if getattr(args, "quick", False) else 2,
        threads=tuple(getattr(args, "threads", None) or (1, 2)),
        peers=PEERS if given is None else tuple(given),
    )
    _check_names(models, plan)
    rows, reasons = [], []
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            found, missing = _measure(name, Path(folder), plan)
            rows += found
            reasons += missing
    start = {"agent": measured_alone("import", AGENT), "torch": measured_alone("import", "torch")}
    sizes = _install_sizes()
    return {
        "suite": "train-step",
        "seeds": [0],
        "tables": {
            "steps": rows,
            "ratios": [_short(row) for row in rows],
            "peers": [_peer_row(row) for row in rows if row["threads"] == 1],
            "not measured": reasons,
            "import": start,
            "install_mb": sizes,
        },
        "shown": ["ratios", "peers", "not measured"],
        "checks": [*_step_checks(rows), *_agent_checks(start["agent"], sizes)],
    }


def _check_names(models: list[str], plan: Plan) -> None:
    known = {*zoo.MODELS, *SPECS}
    for name in models:
        if name not in known:
            raise ConfigError(f"unknown model {name!r}; choose from {', '.join(sorted(known))}")
    for name in plan.peers:
        if name not in PEERS:
            raise ConfigError(f"unknown peer {name!r}; choose from {', '.join(PEERS)}")


def _measure(name: str, folder: Path, plan: Plan) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """One row per number of threads, and the peers that could not be measured."""
    module, _, batch = prepare(name, folder)
    (folder / "forward.onnx").write_bytes(_forward(module, batch))
    backends = ("portable", "torch")
    peaks = {backend: measured_alone("peak", backend, str(folder), "1", str(PEAK_STEPS)) for backend in backends}
    rows: list[dict[str, Any]] = [{"model": name, "threads": count, "batch": BATCH} for count in plan.threads]
    reasons: dict[str, str] = {}
    for _ in range(plan.passes):
        for row in rows:
            times = measured_alone("steps", str(folder), str(row["threads"]), str(plan.seconds))
            for backend in backends:
                _keep_least(row, backend, times[backend])
            if row["threads"] == 1:
                _measure_peers(row, folder, plan, reasons)
    for row in rows:
        for backend in backends:
            row[f"{backend}_peak_mb"] = peaks[backend]["peak_rss_bytes"] / MB
        row["cpu_ratio"] = row["portable_cpu_ms"] / row["torch_cpu_ms"]
        row["wall_ratio"] = row["portable_wall_ms"] / row["torch_wall_ms"]
        row["peak_ratio"] = row["portable_peak_mb"] / row["torch_peak_mb"]
    return rows, [{"model": name, "peer": peer, "reason": reason} for peer, reason in reasons.items()]


def _measure_peers(row: dict[str, Any], folder: Path, plan: Plan, reasons: dict[str, str]) -> None:
    """Time every peer that has not failed before; a failure is a reason."""
    for peer in plan.peers:
        if peer in reasons:
            continue
        try:
            if peer == runtimes.COMPILED:
                times = measured_alone("compiled", str(folder), str(plan.seconds))
            else:
                times = runtimes.measure(peer, folder, plan.seconds, timeout_s=TIMEOUT_S)
        except FedwrightError as err:
            reasons[peer] = str(err)
        else:
            _keep_least(row, peer, times)


def _keep_least(row: dict[str, Any], backend: str, times: dict[str, Any]) -> None:
    for unit in ("cpu_ms", "wall_ms"):
        name = f"{backend}_{unit}"
        row[name] = min(row.get(name, math.inf), times[unit])


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row that fits on a terminal."""
    names = {"portable_cpu_ms": "CPU ms", "torch_cpu_ms": "torch ms", "cpu_ratio": "CPU ratio"}
    names |= {"wall_ratio": "wall ratio", "portable_peak_mb": "peak MB", "peak_ratio": "peak ratio"}
    return {"model": row["model"], "threads": row["threads"], **{short: row[name] for name, short in names.items()}}


def _peer_row(row: dict[str, Any]) -> dict[str, Any]:
    """CPU time of each peer at one thread as a multiple of ours; above 1 is slower than ours."""
    found = {peer: row.get(f"{peer}_cpu_ms") for peer in ("torch", *PEERS)}
    ratios = {peer: None if time is None else time / row["portable_cpu_ms"] for peer, time in found.items()}
    return {"model": row["model"], **ratios, "ours / best": 1 / min(r for r in ratios.values() if r is not None)}


def prepare(name: str, folder: Path) -> tuple[nn.Module, Structure, dict[str, np.ndarray[Any, Any]]]:
    """Write the artifact, weights, batch and task that the measuring processes read."""
    entry = zoo.MODELS.get(name)
    spec = SPECS[name] if entry is None else ModelSpec(name, entry.example_shape, entry.example_classes)
    module = zoo.create(spec, seed=0)
    structure = Structure(spec, optimizer=Optimizer(momentum=MOMENTUM), trainable=adapter_names(module) or ("",))
    (folder / "portable.artifact").write_bytes(pack(build(structure, module)))
    (folder / "weights.safetensors").write_bytes(tensors.save(initial_weights(module)))
    batch = _batch(module, spec)
    (folder / "batch.safetensors").write_bytes(tensors.save(batch))
    np.savez(folder / "batch.npz", allow_pickle=False, **batch)
    trainable = [n for n, _ in module.named_parameters() if n.startswith(structure.trainable)]
    frozen = [n for n in module.state_dict() if n not in trainable]
    task = {
        "model": spec.model,
        "input_shape": spec.input_shape,
        "classes": spec.classes,
        "trainable": trainable,
        "frozen": frozen,
        "momentum": MOMENTUM,
    }
    (folder / "task.json").write_text(json.dumps(task))
    return module, structure, batch


def _forward(module: nn.Module, batch: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """Model and loss in training mode as torch exports them, with weights close to the module's."""
    whole, buffer = WithLoss(copy.deepcopy(module).train()), io.BytesIO()
    with torch.no_grad():
        for value in whole.state_dict().values():
            # The exporter merges weights that are equal, say all-zero biases.
            if value.is_floating_point():
                value.add_(torch.rand_like(value), alpha=1e-4)
    with quiet_tracing():
        torch.onnx.export(
            whole,
            tuple(torch.from_numpy(value) for value in batch.values()),
            buffer,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=OPSET,
            do_constant_folding=False,
            keep_initializers_as_inputs=False,
            training=torch.onnx.TrainingMode.TRAINING,
            input_names=list(batch),
            output_names=["loss"],
        )
    return buffer.getvalue()


def _batch(module: nn.Module, spec: ModelSpec) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    batch: dict[str, np.ndarray[Any, Any]] = {}
    for item in model_inputs(module, spec):
        shape = [BATCH if size == -1 else size for size in item.shape]
        high = BATCH if item.name == "edges" else spec.classes
        whole = item.dtype == np.int64
        batch[item.name] = rng.integers(0, high, shape) if whole else rng.standard_normal(shape).astype(np.float32)
    return batch | {"y": rng.integers(0, spec.classes, BATCH)}


def measured_alone(*words: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "fedwright.benchmarks.processes.training_step", *words]
    # Threads that wait by spinning count as work, and on a busy machine as slowness.
    quiet = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=quiet)
    except subprocess.TimeoutExpired as err:
        raise FedwrightError(f"measuring {words[0]} took longer than {TIMEOUT_S} s") from err
    except subprocess.CalledProcessError as err:
        last = (err.stderr.strip().splitlines() or ["no message"])[-1]
        raise FedwrightError(f"measuring {' '.join(words)} failed: {last}") from err
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _install_sizes() -> dict[str, float]:
    """Megabytes on disk of what a device installs, and of torch for comparison."""
    wanted = [text for text in importlib.metadata.requires("fedwright") or () if _DEVICE_EXTRA.search(text)]
    device = sorted({re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in wanted})
    sizes = {name: _size_mb(name) for name in device}
    return sizes | {"device": sum(sizes.values()), "torch": _size_mb("torch")}


def _size_mb(distribution: str) -> float:
    files = importlib.metadata.files(distribution) or []
    paths = [Path(str(file.locate())) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / MB


def _step_checks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Against the best peer and torch's memory at one thread, against torch's seconds at two."""
    checks, eager = [], []
    for row in rows:
        limit = PEAK_RATIOS.get(row["model"])
        if limit is None or row["threads"] > 2:
            continue
        if row["threads"] == 2:
            checks.append(at_most(f"wall time / torch: {row['model']}, 2 threads", row["wall_ratio"], EAGER_WALL))
            continue
        eager.append(row["cpu_ratio"])
        best = _peer_row(row)["ours / best"]
        checks.append(at_most(f"CPU time / best peer: {row['model']}, 1 thread", best, BEST_PEER))
        checks.append(at_most(f"peak memory / torch: {row['model']}", row["peak_ratio"], limit))
    if eager:
        mean = math.exp(sum(map(math.log, eager)) / len(eager))
        checks.append(at_most("CPU time / torch: geometric mean, 1 thread", mean, EAGER_MEAN))
    return checks


def _agent_checks(agent: dict[str, Any], sizes: dict[str, float]) -> list[dict[str, Any]]:
    return [
        at_most("agent import, CPU s", agent["cpu_s"], IMPORT_CPU_S),
        at_most("agent import, peak MB", agent["peak_rss_bytes"] / MB, IMPORT_RSS_MB),
        at_most("agent install, MB", sizes["device"], INSTALL_MB),
    ]


def at_most(name: str, value: float, limit: float) -> dict[str, Any]:
    """A check that a figure keeps below its bound."""
    return {"name": name, "value": round(value, 3), "target": f"<= {limit}", "holds": value <= limit}
