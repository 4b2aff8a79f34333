"""`fedwright bench world`: how many public architectures build, train on a device and change as in torch.

Every architecture of architectures.toml (torchvision, timm, transformers; small, random weights) goes through export,
differentiation, the device's check and three steps, in a process with limits, and is compared with torch in float64.
Finished ones are kept until the suite ends, so an interrupted one goes on.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

import tomllib

from fedwright.benchmarks.harness.kept_jobs import place_named
from fedwright.benchmarks.harness.public_libraries import LIBRARIES, environment
from fedwright.benchmarks.harness.suite import check
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.steps import steps

GOAL = 0.97
LEAST_ARCHITECTURES = 150
KILO = 1e3


def read_list() -> dict[str, Any]:
    """The list of architectures, the names of a quick run, and the limits of a process."""
    place = resources.files("fedwright.benchmarks").joinpath("harness", "architectures.toml")
    return tomllib.loads(place.read_text(encoding="utf-8"))


def architectures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry per architecture, named library/model."""
    found = []
    for group in document["group"]:
        shared = {key: value for key, value in group.items() if key != "models"}
        found += [{**shared, "model": model, "name": f"{group['library']}/{model}"} for model in group["models"]]
    return found


def chosen(document: Mapping[str, Any], wanted: Sequence[str] | None, *, quick: bool) -> list[dict[str, Any]]:
    """What a run measures: all, those of a quick run, or those whose names hold one of the wanted words."""
    every = architectures(document)
    if wanted:
        found = [entry for entry in every if any(word in entry["name"] for word in wanted)]
        if not found:
            raise ConfigError(f"no architecture of the list is called {' or '.join(wanted)}; try --models resnet18")
        return found
    names = set(document["quick"]["models"]) if quick else {entry["name"] for entry in every}
    return [entry for entry in every if entry["name"] in names]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the architectures asked for, as many at a time as there are cores."""
    quick = bool(getattr(args, "quick", False))
    document = read_list()
    entries = chosen(document, getattr(args, "models", None), quick=quick)
    python = environment()
    rows = _all_rows(entries, python, document["limits"])
    return {
        "suite": "world",
        "seeds": [0],
        "libraries": list(LIBRARIES),
        "tables": {"architectures": rows, "libraries": _by_library(rows), "failures": _failures(rows)},
        "shown": ["libraries", "failures"],
        "checks": _checks(rows, whole=not quick and not getattr(args, "models", None)),
    }


def _all_rows(entries: list[dict[str, Any]], python: Path, limits: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    with (
        steps("architectures", len(entries)) as advance,
        Measurers(python, limits) as measurers,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for row in pool.map(lambda entry: measure_kept(entry, measurers, limits), entries):
            rows.append(row)
            advance()
    return rows


def measure_kept(entry: dict[str, Any], measurers: "Measurers", limits: Mapping[str, Any]) -> dict[str, Any]:
    """One architecture, or what is kept of it since an earlier start of the suite."""
    place = place_named([entry, dict(limits)])
    if place is not None and place.exists():
        kept: dict[str, Any] = json.loads(place.read_text())
        return kept
    row = measurers.measure(entry)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, json.dumps(row).encode())
    return row


class Measurers:
    """Processes that have imported the libraries; each measures one architecture at a time, in a child."""

    def __init__(self, python: Path, limits: Mapping[str, Any]) -> None:
        words = [str(limits[key]) for key in ("memory_bytes", "cpu_s", "wall_s")]
        self._command = [str(python), "-W", "ignore", "-m", "fedwright.benchmarks.processes.architecture", *words]
        self._free: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._all: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Measurers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.communicate()

    def measure(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The row of one architecture, by a process that is free or a new one."""
        process = self._start() if self._free.empty() else self._free.get()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(entry) + "\n")
        process.stdin.flush()
        said = process.stdout.readline()
        if not said:
            raise ConfigError(f"the process that measures {entry['name']} ended; run the suite again to go on")
        self._free.put(process)
        return {"name": entry["name"], **json.loads(said)}

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._all.append(process)
        return process


def _by_library(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = []
    for library in sorted({row["name"].partition("/")[0] for row in rows}):
        own = [row for row in rows if row["name"].startswith(f"{library}/")]
        built = [row for row in own if row["built"]]
        table.append(
            {
                "library": library,
                "architectures": len(own),
                "build": len(built) / len(own),
                "agree": sum(row["agrees"] for row in own) / len(own),
                "artifact kB (median)": median(row["artifact_bytes"] for row in built) / KILO if built else None,
                "build CPU s (median)": median(row["build_s"] for row in built) if built else None,
            }
        )
    return table


def _failures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"architecture": row["name"], "reason": row["reason"]} for row in rows if not row["agrees"]]


def _checks(rows: list[dict[str, Any]], *, whole: bool) -> list[dict[str, Any]]:
    built = sum(row["built"] for row in rows) / len(rows)
    agree = sum(row["agrees"] for row in rows) / len(rows)
    checks = [
        check("share that builds", built, f">= {GOAL}", holds=built >= GOAL),
        check("share that agrees with torch", agree, f">= {GOAL}", holds=agree >= GOAL),
    ]
    if whole:
        many = len(rows) >= LEAST_ARCHITECTURES
        checks.append(check("architectures", len(rows), f">= {LEAST_ARCHITECTURES}", holds=many))
    return checks
