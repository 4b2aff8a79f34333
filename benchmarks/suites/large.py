"""`fedwright bench large`: what a device needs to train adapters on a base that is too large to be trained whole.

The base lies memory-mapped in 32, 8 or 4 bits; a process like a device's own trains adapters of rank 8 on 64 words, and
its highest resident memory counts, interpreter and runtime included. Beside it stands what the device's check says
before it begins. A model of a billion parameters is planned, not run: the need of one and of two of its layers, and a
straight line from there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedwright.benchmarks.harness.large_models import WORDS
from fedwright.benchmarks.harness.suite import check, reported
from fedwright.benchmarks.processes.large_device import ARTIFACT, FROZEN, WEIGHTS
from fedwright.device_runtime.train.check import need_bytes
from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact, pack
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.packed import packed_specs
from fedwright.server_runtime.artifacts.trainable import trained_names, with_adapters
from fedwright.server_runtime.blocks import packing
from fedwright.server_runtime.methods.base import Tensors
from fedwright.server_runtime.spec import ModelSpec, Structure

MODELS = "python:fedwright.benchmarks.harness.large_models:"
TRAINABLE, CLASSES, BATCH = "lora-8", 4, 4
KINDS: tuple[packing.Packing, ...] = ("float32", "int8", "int4")
MOST_MB, TIMEOUT_S, MB = 400.0, 600, 1e6
LAYERS_OF_A_BILLION = 18
Size = Literal["make_base", "make_quarter", "make_wide", "make_wider"]
SIZES_OF_PLAN: tuple[Size, Size] = ("make_wide", "make_wider")


@dataclass(frozen=True)
class Prepared:
    """What travels to a device for one packing of one model."""

    artifact: Artifact
    frozen: Tensors
    weights: Tensors
    parameters: int

    @property
    def frozen_bytes(self) -> int:
        """Size of the base."""
        return sum(value.nbytes for value in self.frozen.values())


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Build, train in a process of its own, compare; plan a model of a billion parameters."""
    quick = getattr(args, "quick", False)
    size: Size = "make_quarter" if quick else "make_base"
    rows = [_row(size, kind) for kind in KINDS]
    plans = [] if quick else [_plan(kind) for kind in ("int8", "int4")]
    return {"tables": _tables(rows, plans), "checks": _checks(rows, whole=not quick)}


def prepare(size: Size, kind: packing.Packing) -> Prepared:
    """Adapters of rank 8 on every linear layer; the rest frozen, packed as asked."""
    plain = ModelSpec(MODELS + size, (WORDS,), CLASSES)
    spec = with_adapters(plain, TRAINABLE)
    module = zoo.create(spec, seed=0)
    trained = trained_names(module, plain, TRAINABLE)
    artifact = build(Structure(spec, trainable=trained, packing=kind), module)
    whole = initial_weights(module)
    frozen: Tensors = {}
    for name, value in whole.items():
        if name in trained:
            continue
        if kind != "float32" and packing.is_packed(value.shape):
            entries, scales = packed_specs(name, value.shape, kind)
            frozen[entries.name], frozen[scales.name] = packing.pack(value, kind)
        else:
            frozen[name] = value
    wanted = {spec.name for spec in artifact.manifest.frozen}
    return Prepared(
        artifact,
        {name: value for name, value in frozen.items() if name in wanted},
        {name: whole[name] for name in trained},
        sum(value.size for value in whole.values()),
    )


def measure(made: Prepared, batch: int = BATCH) -> dict[str, float]:
    """What a process takes that trains it."""
    with tempfile.TemporaryDirectory(prefix="fedwright-large-") as place:
        folder = Path(place)
        (folder / ARTIFACT).write_bytes(pack(made.artifact))
        (folder / FROZEN).write_bytes(tensors.save(made.frozen))
        (folder / WEIGHTS).write_bytes(tensors.save(made.weights))
        command = [sys.executable, "-m", "fedwright.benchmarks.processes.large_device", place, str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _row(size: Size, kind: packing.Packing) -> dict[str, Any]:
    made = prepare(size, kind)
    found = measure(made)
    return {
        "base": kind,
        "parameters": made.parameters,
        "base MB": made.frozen_bytes / MB,
        "artifact kB": len(pack(made.artifact)) / 1e3,
        "peak MB": found["peak_bytes"] / MB,
        "predicted MB": need_bytes(made.artifact.manifest, BATCH) / MB,
        "CPU s per step": found["step_cpu_s"],
        "loss": found["loss"],
    }


def _plan(kind: packing.Packing) -> dict[str, Any]:
    """Parameters, base and need of a model of 18 layers of width 2,048, by one and by two of them."""
    found = []
    for size in SIZES_OF_PLAN:
        made = prepare(size, kind)
        found.append((made.parameters, made.frozen_bytes, need_bytes(made.artifact.manifest, BATCH)))
    one, two = found
    line = [a + (LAYERS_OF_A_BILLION - 1) * (b - a) for a, b in zip(one, two, strict=True)]
    return {"base": kind, "parameters": line[0], "base MB": line[1] / MB, "predicted MB": line[2] / MB}


def _tables(rows: list[dict[str, Any]], plans: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    tables = {f"adapters on a frozen base, batch {BATCH} of {WORDS} words": rows}
    return tables | ({"a model of a billion parameters, as planned": plans} if plans else {})


def _checks(rows: list[dict[str, Any]], *, whole: bool) -> list[dict[str, Any]]:
    peaks = {row["base"]: row["peak MB"] for row in rows}
    target = f"<= {MOST_MB:.0f}"
    found = [
        check(f"peak with a base of {kind}, MB", peaks[kind], target, holds=peaks[kind] <= MOST_MB)
        for kind in ("int8", "int4")
        if whole
    ]
    most = max(row["peak MB"] / row["predicted MB"] for row in rows)
    found.append(reported("peak of the process over what the device's check says", most))
    found.append(
        check(
            "peak with int4 over float32",
            peaks["int4"] / peaks["float32"],
            "<= 0.5",
            holds=2 * peaks["int4"] <= peaks["float32"],
        )
    )
    return found
