"""`fedwright bench memory`: the front of seconds against megabytes of a training step, beside torch's.

Batch 32, SGD with momentum, one thread, each form in a process of its own: ours as fast as can be, without tensors that
are held twice, with activations made again, and in parts; torch eager, with its blocks checkpointed, and with gradients
of parts accumulated. CPU time is the least of a few steps, memory the highest resident one of the process.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwright.benchmarks.suites.train_step import MB, at_most, measured_alone, prepare
from fedwright.protocol.artifact import pack
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.predictor import expected_bytes
from fedwright.server_runtime.artifacts.builder import build

BATCH = 32
FASTEST, EAGER, CHECKPOINTS = "portable", "torch", "torch checkpointing"
PARTS, LEANEST = "held once", "made again too"
# Whether activations are made again.
FORMS = {PARTS: False, LEANEST: True}
OURS = ((FASTEST, 0), (PARTS, 0), (LEANEST, 0), (LEANEST, 16), (PARTS, 8), (LEANEST, 8), (LEANEST, 4))
TORCH = ((EAGER, 0), (CHECKPOINTS, 0), (EAGER, 8), (CHECKPOINTS, 8), (CHECKPOINTS, 4))
# The most of torch's peak that one of our forms takes which is at most SLOWER times as slow as our fastest.
PEAKS = {"resnet18": 0.35, "mobilenet-v2": 0.30, "vit-tiny": 0.30}
SLOWER = 1.35
# A model that a board with 1 GB must be able to train; nothing else of it is measured.
LARGE, LARGE_PART, LARGE_MB = "resnet50", 4, 1000.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every form of every model asked for."""
    models = list(getattr(args, "models", None) or [*PEAKS, LARGE])
    steps = 3 if getattr(args, "quick", False) else 8
    for name in models:
        if name not in {*PEAKS, LARGE}:
            raise ConfigError(f"unknown model {name!r}; choose from {', '.join([*PEAKS, LARGE])}")
    rows = []
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            forms = ((LEANEST, LARGE_PART),) if name == LARGE else OURS + TORCH
            rows += _measure(name, Path(folder), forms, 1 if name == LARGE else steps)
    return {
        "suite": "memory",
        "seeds": [0],
        "tables": {"forms": rows},
        "shown": ["forms"],
        "checks": [check for name in models for check in checks_of(name, [r for r in rows if r["model"] == name])],
    }


def _measure(name: str, folder: Path, forms: tuple[tuple[str, int], ...], steps: int) -> list[dict[str, Any]]:
    """A row for each form, and which of each system's none beats in both."""
    module, structure, _ = prepare(name, folder)
    artifacts = {FASTEST: build(structure, module)}
    for form, again in FORMS.items():
        artifacts[form] = build(replace(structure, parts=True, recompute=again), module)
        (folder / f"{form}.artifact").write_bytes(pack(artifacts[form]))
    rows = []
    for form, part in forms:
        found = measured_alone("form", form, str(folder), str(part), str(steps))
        row = {"model": name, "form": form, "part": part or BATCH, "CPU ms": found["cpu_ms"]}
        row["peak MB"] = found["peak_rss_bytes"] / MB
        manifest = artifacts[form].manifest if form in artifacts else None
        row["expected MB"] = None if manifest is None else expected_bytes(manifest, part or BATCH) / MB
        rows.append(row)
    for row in rows:
        same = [one for one in rows if one["form"].startswith(EAGER) == row["form"].startswith(EAGER)]
        row["on the front"] = not any(one["CPU ms"] < row["CPU ms"] and one["peak MB"] < row["peak MB"] for one in same)
    return rows


def checks_of(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is promised of a model's front."""
    if name == LARGE:
        return [at_most("peak MB: resnet50, 224 x 224, batch 32", rows[0]["peak MB"], LARGE_MB)]
    by_form = {(row["form"], row["part"]): row for row in rows}
    fastest, eager = by_form[FASTEST, BATCH], by_form[EAGER, BATCH]
    ours = [row for row in rows if not row["form"].startswith(EAGER)]
    quick = [row for row in ours if row["CPU ms"] <= SLOWER * fastest["CPU ms"]]
    best = min(quick, key=lambda row: float(row["peak MB"]))
    title = f"peak memory / torch, at most {SLOWER} times our fastest: {name}"
    return [at_most(title, best["peak MB"] / eager["peak MB"], PEAKS[name])]
