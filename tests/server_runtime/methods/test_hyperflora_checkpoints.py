"""HyperFLoRA's checkpoints: who measures when, what is kept, and that a kill between forgets nothing."""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import CheckedUpdate, MethodState
from fedwright.server_runtime.methods.hyperflora import HyperFLoRA
from fedwright.server_runtime.methods.params.generated_models import HyperFLoRAParams
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.simulate import simulate
from helpers.fleet import report, setting
from helpers.simulation import make_config

SPEC = ModelSpec("cnn-lora", (1, 8, 8), 4)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
COUNTS = {"a": [8, 8, 0, 0], "b": [0, 8, 8, 0], "c": [0, 0, 8, 8], "d": [8, 0, 0, 8]}


def make(**changes: Any) -> HyperFLoRA:
    initial = initial_weights(zoo.create(SPEC, seed=1))
    return HyperFLoRA(
        HyperFLoRAParams(**{"pretrain_rounds": 0, "exchanges": 2, **changes}), setting(spec=SPEC, initial=initial)
    )


def reports() -> dict[str, Report]:
    return {d: report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=held)) for d, held in COUNTS.items()}


def measured(method: HyperFLoRA, number: int, right: dict[str, int], change: float = 0.01) -> list[list[str]]:
    """A round with all that it passes on; devices get `right` of 10 held-out rows right. Who was asked, by stage."""
    method.meet(reports())
    stage, asked = method.assign(reports(), number), []
    while stage:
        relays = []
        asked.append(sorted(stage))
        for device, assignment in sorted(stage.items()):
            emission = method.emit(device, assignment)
            trains = assignment.returns.weights != "none"
            sent = {name: np.full_like(value, change) for name, value in emission.weights.items()} if trains else {}
            said = structs.replace(STATS, holdout=10, correct_before=right[device])
            relays.append(method.absorb(device, CheckedUpdate(sent, said, assignment)))
        relays += method.pass_on()
        stage = {relay.device: relay.assignment for relay in relays if relay is not None}
    method.advance()
    return asked


EQUAL, WORSE = dict.fromkeys(COUNTS, 6), dict.fromkeys(COUNTS, 5)


def test_the_hypernetwork_counts_as_it_did_best_on_held_out_rows() -> None:
    method = make(pairs=False, choose_every=2)
    assert len(measured(method, 1, EQUAL)) == 1
    began = method.model_of("a")[1]
    assert measured(method, 2, EQUAL) == [sorted(COUNTS), sorted(COUNTS)]
    # What was measured in round 2 is what it began with; the step of that round is not known to be any good.
    after_two = method.start_of("a")[1]
    assert any((began[name] != after_two[name]).any() for name in began)
    for name, value in method.model_of("a")[1].items():
        np.testing.assert_array_equal(value, began[name])
    measured(method, 3, EQUAL)
    measured(method, 4, WORSE)
    for name, value in method.model_of("a")[1].items():
        np.testing.assert_array_equal(value, began[name])
    measured(method, 5, EQUAL)
    before_six = method.start_of("a")[1]
    measured(method, 6, dict.fromkeys(COUNTS, 9))
    for name, value in method.model_of("a")[1].items():
        np.testing.assert_array_equal(value, before_six[name])


def test_the_base_is_frozen_as_it_did_best_on_held_out_rows() -> None:
    method = make(pretrain_rounds=3, choose_every=1)
    measured(method, 1, EQUAL)
    best = dict(method._base.weights)
    measured(method, 2, dict.fromkeys(COUNTS, 8))
    measured(method, 3, WORSE)
    assert method._base.frozen
    for name, value in method._base.weights.items():
        np.testing.assert_array_equal(value, best[name])


def test_pairs_end_before_devices_measure_and_a_kill_between_forgets_nothing() -> None:
    method, twin = make(choose_every=1), make(choose_every=1)
    asked = measured(method, 1, EQUAL)
    assert asked[-1] == sorted(COUNTS)
    assert len(asked) == 2 + 4
    twin.restore(MethodState.read(method.state().to_bytes()))
    assert twin.state().to_bytes() == method.state().to_bytes()
    twin.meet(reports())
    assert measured(twin, 2, WORSE) == measured(method, 2, WORSE)
    assert twin.state().to_bytes() == method.state().to_bytes()


def test_devices_that_hold_nothing_out_decide_nothing() -> None:
    method = make(pairs=False, choose_every=1)
    method.meet(reports())
    stage = method.assign(reports(), 1)
    for device, assignment in sorted(stage.items()):
        sent = {name: np.zeros_like(value) for name, value in method.emit(device, assignment).weights.items()}
        method.absorb(device, CheckedUpdate(sent, STATS, assignment))
    for relay in method.pass_on():
        method.absorb(relay.device, CheckedUpdate({}, STATS, relay.assignment))
    assert "validation" not in method.advance()
    assert method._checkpoints.best == {}


def test_a_simulated_run_chooses_on_rows_that_are_not_tested_on(tmp_path: Path) -> None:
    config, text = make_config(
        tmp_path,
        method={"name": "hyperflora", "pretrain_rounds": 1, "pairs": False, "choose_every": 1},
        model={"model": "cnn-lora"},
        run={"rounds": 3},
        simulate={"devices": 3, "val_ratio": 0.2, "processes": 0, "rows": 120},
    )
    found = simulate(config, text)
    assert all("validation" in metrics for metrics in found.outcome.metrics)
