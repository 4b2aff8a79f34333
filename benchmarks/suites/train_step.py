"""`fedwright bench train-step`: a training step in plain ONNX against torch eager, the same model in the same run.

Times are the least CPU time of one step, batch 32, SGD with momentum; portable and torch take turns in one process.
Peak memory comes from a process per backend. The classic backend needs an environment of its own
(`--classic-python`); it has no momentum and no running statistics, so it is measured where it can train at all.
"""

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.protocol import tensors
from fedwright.protocol.artifact import pack
from fedwright.protocol.errors import BuildError, ConfigError, FedwrightError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from fedwright.server_runtime.zoo.adapters import adapter_names

BATCH = 32
MOMENTUM = 0.9
PEAK_STEPS = 6
TIMEOUT_S = 900
AGENT = "fedwright.device_runtime.agent"
IMPORT_CPU_S, IMPORT_RSS_MB = 0.5, 60.0
MB = 1e6
# What only an older Python needs has a further condition before it.
_DEVICE_EXTRA = re.compile(r";\s*extra == ['\"]device['\"]")


@dataclass(frozen=True)
class Target:
    """The largest ratios portable / torch that a model may show, by number of threads."""

    cpu: tuple[float, float] = (1.0, 1.15)
    peak_rss: float = 0.35


TARGETS = {
    "lenet": Target(),
    "resnet8": Target(),
    "resnet18": Target(peak_rss=0.65),
    "mobilenet-v2": Target(),
    "vit-tiny": Target(),
    "lstm-lm": Target(),
    "mlp-lora": Target(),
}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every model asked for and check it against its target."""
    models = list(getattr(args, "models", None) or TARGETS)
    threads = list(getattr(args, "threads", None) or [1, 2])
    seconds = 1.5 if getattr(args, "quick", False) else 15.0
    rows = []
    for name in models:
        if name not in zoo.MODELS:
            raise ConfigError(f"unknown model {name!r}; choose from {', '.join(sorted(zoo.MODELS))}")
        with tempfile.TemporaryDirectory() as folder:
            rows += _measure(name, Path(folder), threads, seconds, getattr(args, "classic_python", None))
    start = {"agent": _child("import", AGENT), "torch": _child("import", "torch")}
    sizes = _install_sizes()
    return {
        "suite": "train-step",
        "seeds": [0],
        "tables": {"steps": rows, "ratios": [_short(row) for row in rows], "import": start, "install_mb": sizes},
        "shown": ["ratios"],
        "checks": [*_step_checks(rows), *_import_checks(start["agent"])],
    }


def _measure(name: str, folder: Path, threads: list[int], seconds: float, classic: str | None) -> list[dict[str, Any]]:
    """One row per number of threads."""
    structure = _prepare(name, folder)
    backends = {"portable": sys.executable, "torch": sys.executable}
    if classic is not None and _prepare_classic(structure, folder, Path(classic)):
        backends["classic"] = classic
    peaks = {
        backend: _child("peak", backend, str(folder), "1", str(PEAK_STEPS), python=python)
        for backend, python in backends.items()
    }
    rows = []
    for count in threads:
        times = _child("steps", str(folder), str(count), str(seconds))
        row: dict[str, Any] = {"model": name, "threads": count, "batch": BATCH}
        for backend in ("portable", "torch"):
            row |= {f"{backend}_{unit}": value for unit, value in times[backend].items()}
            row[f"{backend}_peak_mb"] = peaks[backend]["peak_rss_bytes"] / MB
        if "classic" in peaks:
            row |= {"classic_cpu_ms": peaks["classic"]["cpu_ms"], "classic_wall_ms": peaks["classic"]["wall_ms"]}
            row["classic_peak_mb"] = peaks["classic"]["peak_rss_bytes"] / MB
        row["cpu_ratio"] = row["portable_cpu_ms"] / row["torch_cpu_ms"]
        row["wall_ratio"] = row["portable_wall_ms"] / row["torch_wall_ms"]
        row["peak_ratio"] = row["portable_peak_mb"] / row["torch_peak_mb"]
        rows.append(row)
    return rows


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row that fits on a terminal."""
    names = {"portable_cpu_ms": "CPU ms", "torch_cpu_ms": "torch ms", "cpu_ratio": "CPU ratio"}
    names |= {"wall_ratio": "wall ratio", "portable_peak_mb": "peak MB", "peak_ratio": "peak ratio"}
    return {"model": row["model"], "threads": row["threads"], **{short: row[name] for name, short in names.items()}}


def _prepare(name: str, folder: Path) -> Structure:
    """Write the artifact, weights, batch and task that the measuring processes read."""
    entry = zoo.MODELS[name]
    spec = ModelSpec(name, entry.example_shape, entry.example_classes)
    module = zoo.create(spec, seed=0)
    structure = Structure(spec, optimizer=Optimizer(momentum=MOMENTUM), trainable=adapter_names(module) or ("",))
    (folder / "portable.artifact").write_bytes(pack(build(structure, module)))
    (folder / "weights.safetensors").write_bytes(tensors.save(initial_weights(module)))
    (folder / "batch.safetensors").write_bytes(tensors.save(_batch(module, spec)))
    trainable = [n for n, _ in module.named_parameters() if n.startswith(structure.trainable)]
    task = {
        "model": name,
        "input_shape": spec.input_shape,
        "classes": spec.classes,
        "trainable": trainable,
        "momentum": MOMENTUM,
    }
    (folder / "task.json").write_text(json.dumps(task))
    return structure


def _batch(module: Any, spec: ModelSpec) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    batch: dict[str, np.ndarray[Any, Any]] = {}
    for item in module.inputs():
        shape = [BATCH if size == -1 else size for size in item.shape]
        high = BATCH if item.name == "edges" else spec.classes
        whole = item.dtype == "int64"
        batch[item.name] = rng.integers(0, high, shape) if whole else rng.standard_normal(shape).astype(np.float32)
    return batch | {"y": rng.integers(0, spec.classes, BATCH)}


def _prepare_classic(structure: Structure, folder: Path, python: Path) -> bool:
    """Write the classic artifact if that backend can train this model without momentum."""
    from dataclasses import replace

    from fedwright.server_runtime.artifacts.classic import build_classic

    try:
        artifact = build_classic(replace(structure, optimizer=Optimizer()), python=python)
    except BuildError:
        return False
    (folder / "classic.artifact").write_bytes(pack(artifact))
    return True


def _child(*words: str, python: str = sys.executable) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [python, "-m", "fedwright.benchmarks.processes.training_step", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
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
    checks = []
    for row in rows:
        target = TARGETS.get(row["model"])
        if target is None or row["threads"] > len(target.cpu):
            continue
        label = f"{row['model']}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
        checks.append(_at_most(f"CPU time / torch: {label}", row["cpu_ratio"], target.cpu[row["threads"] - 1]))
        if row["threads"] == 1:
            checks.append(_at_most(f"peak memory / torch: {row['model']}", row["peak_ratio"], target.peak_rss))
    return checks


def _import_checks(agent: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        _at_most("agent import, CPU s", agent["cpu_s"], IMPORT_CPU_S),
        _at_most("agent import, peak MB", agent["peak_rss_bytes"] / MB, IMPORT_RSS_MB),
    ]


def _at_most(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "target": f"<= {limit}", "holds": value <= limit}
