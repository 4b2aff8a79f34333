"""The suite growth: what a server costs as devices, parameters and rounds become more; nothing may exceed a line."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedwright.benchmarks.harness import idle_rounds
from fedwright.benchmarks.harness.suite import check
from fedwright.benchmarks.processes.growth_simulation import INPUT
from fedwright.protocol.errors import FedwrightError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.spec import ModelSpec

MOST = 1.05
MODEL = "lenet-valid"
ROUNDS = 4
# From 64 thousand to 11 million parameters.
MODELS = ("lenet-valid", "cnn-small", "cnn3", "mobilenet-v3", "cnn4", "resnet18")
SECONDS, MEMORY, BYTES = "server CPU s", "server MB more", "bytes per device"
# Memory below this is what a process varies by.
LEAST_MB = 5.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Four tables, each with the exponent of its cost."""
    simulated = (10, 30, 100, 300) if args.quick else (10, 30, 100, 300, 1000)
    linked = (10, 20, 40) if args.quick else (10, 30, 100)
    lengths = (10, 30, 100) if args.quick else (10, 30, 100, 300)
    tables = {
        "simulated devices": [
            {"devices": count, **_simulated(devices=count)} for count in counted(simulated, "simulated devices")
        ],
        "devices over MQTT": _over_mqtt(linked),
        "parameters": _by_model(MODELS[:4] if args.quick else MODELS),
        "rounds": [_long(rounds) for rounds in counted(lengths, "rounds")],
    }
    checks = []
    for title, rows in tables.items():
        along = next(iter(rows[0]))
        for cost in (SECONDS, MEMORY):
            spent = [max(row[cost], LEAST_MB) if cost == MEMORY else row[cost] for row in rows]
            power = exponent([row[along] for row in rows], spent)
            checks.append(check(f"exponent of {cost} over {title}", power, f"<= {MOST}", holds=power <= MOST))
    for title in ("simulated devices", "devices over MQTT"):
        sent = [row[BYTES] for row in tables[title]]
        ratio = max(sent) / min(sent)
        checks.append(check(f"{BYTES}, most / least, {title}", ratio, "<= 1.1", holds=ratio <= 1.1))
    return {"seeds": [1], "tables": tables, "checks": checks}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """p of the line log cost = p log size + c with the least squared error."""
    return float(np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float)), 1)[0])


def _simulated(*, devices: int, model: str = MODEL, rounds: int = ROUNDS) -> dict[str, Any]:
    """One simulation in a process of its own, whose time and memory are the server's alone."""
    command = [
        sys.executable,
        "-m",
        "fedwright.benchmarks.processes.growth_simulation",
        str(devices),
        model,
        str(rounds),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FedwrightError(f"a simulation of {devices} devices with {model} failed: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _by_model(models: Sequence[str]) -> list[dict[str, Any]]:
    rows = [
        {"parameters": _parameters(model), "model": model, **_simulated(devices=4, model=model)}
        for model in counted(models, "models")
    ]
    return sorted(rows, key=lambda row: int(row["parameters"]))


def _parameters(model: str) -> int:
    from fedwright.server_runtime.methods.shared.submodels import count_params

    return count_params(ModelSpec(model, INPUT, 10))


def _long(rounds: int) -> dict[str, Any]:
    """The whole of a run, so that a cost that grows with what is stored shows up; all rounds cost what the mean does.

    The first round is not timed: it builds the graph.
    """
    row = _simulated(devices=4, rounds=rounds)
    return {"rounds": rounds, **row, SECONDS: row[SECONDS] * rounds}


def _over_mqtt(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Rounds of real agents that do nothing, so that only what a device costs the server is measured."""
    with Broker() as broker:
        # What a first fleet makes this process load is not what devices cost.
        idle_rounds.measure(broker, devices=2, rounds=1)
        found = [idle_rounds.measure(broker, devices=count, rounds=ROUNDS) for count in counted(counts, "over MQTT")]
    names = {"devices": "devices", "server_cpu_s": SECONDS, "server_mb": MEMORY, "bytes_per_device": BYTES}
    return [{new: row[old] for old, new in names.items()} | {"round s": row["round_s"]} for row in found]
