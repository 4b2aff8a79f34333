"""The suite pfedclub-server: what teachers cost a server, from 5 to 50 devices, and comparing blocks alone."""

import argparse
import importlib
import time
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.suite import check
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.params.personal_models import PersonalModelParams, PFedClubParams
from fedwright.server_runtime.methods.pfedclub import PFedClub
from fedwright.server_runtime.methods.shared.teachers import BoardLimits, Pupil
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec, Optimizer

SPEC = ModelSpec("cnn1", (1, 28, 28), 10)
MODELS = ("cnn1", "cnn2", "cnn3", "cnn4@0.5")
PUBLIC = 64
MOST_GROUPING_S = 5.0
# From 5 to 50 devices time may grow by as much as the number of devices, and a little for what varies with the draw.
MOST_GROWTH = 1.5


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    importlib.import_module("sklearn.cluster")
    counts = (5, 10, 20) if args.quick else (5, 10, 20, 50)
    rows = [round_cost(count) for count in counts]
    grouping = grouping_cost(50)
    growth = rows[-1]["s per device"] / rows[0]["s per device"]
    return {
        "seeds": [0],
        "tables": {"teachers for one round": rows, "comparing and grouping the blocks of 50 devices": [grouping]},
        "checks": [
            check("CPU seconds to compare and group, 50 devices", grouping["cpu s"], "< 5",
                  holds=grouping["cpu s"] < MOST_GROUPING_S),
            check(f"CPU seconds per device, {counts[-1]} devices over {counts[0]}", growth, f"<= {MOST_GROWTH:g}",
                  holds=growth <= MOST_GROWTH),
        ],
    }  # fmt: skip


def fleet(devices: int) -> PFedClub:
    """A method that has heard from so many devices, each with weights of its own."""
    rng = np.random.default_rng(0)
    public = PublicData(rng.random((PUBLIC, *SPEC.input_shape), np.float32), np.arange(PUBLIC) % SPEC.classes)
    setting = Setting(
        spec=SPEC,
        optimizer=Optimizer("adam"),
        initial=initial_weights(zoo.create(SPEC, seed=0)),
        learning_rate=0.001,
        batch=16,
        epochs=1,
        seed=0,
        public=public,
    )
    method = PFedClub(PFedClubParams(PersonalModelParams(MODELS), most=4, finalists=1, tune_epochs=1), setting)
    for number in range(devices):
        spec = method.spec_of(MODELS[number % len(MODELS)])
        method.specs[f"d-{number}"] = spec
        method.weights[f"d-{number}"] = initial_weights(zoo.create(spec, seed=number))
    return method


def pupils_of(method: PFedClub) -> dict[str, Pupil]:
    """All devices' models in blocks."""
    found = {device: method.pupil(device) for device in sorted(method.specs)}
    return {device: pupil for device, pupil in found.items() if pupil is not None}


def round_cost(devices: int) -> dict[str, float]:
    """CPU seconds in which so many devices get teachers."""
    method = fleet(devices)
    pupils = pupils_of(method)
    began_s = time.process_time()
    made = method.make_teachers(pupils, {device: BoardLimits(1, 10**12) for device in pupils})
    spent_s = time.process_time() - began_s
    taught = sum(bool(teachers) for teachers in made.values())
    return {"devices": devices, "cpu s": spent_s, "s per device": spent_s / devices, "taught": taught}


def grouping_cost(devices: int) -> dict[str, float]:
    """Seconds in which the blocks of so many devices are run, compared and grouped."""
    method = fleet(devices)
    pupils = pupils_of(method)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    groups = method.grouped(pupils, groups=4, rows=64, seed=0)
    return {
        "blocks": len(groups.members),
        "wall s": time.perf_counter() - wall_s,
        "cpu s": time.process_time() - cpu_s,
    }
