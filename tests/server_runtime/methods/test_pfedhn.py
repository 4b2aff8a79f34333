"""pFedHN: who gets which model, learnt descriptions, devices without classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.method_setting import make_method
from fedwright.server_runtime.methods.base import CheckedUpdate
from fedwright.server_runtime.methods.baselines.pfedhn import PFedHN
from fedwright.server_runtime.methods.params.generated_models import PFedHNParams
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting
from helpers.simulation import make_config

SPEC = ModelSpec("cnn-small", (1, 8, 8), 4)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
COUNTS = {"a": [8, 8, 0, 0], "b": [0, 0, 8, 8], "c": [1, 1, 0, 0]}


def make(**changes: Any) -> PFedHN:
    return PFedHN(PFedHNParams(**changes), setting(spec=SPEC, initial=initial_weights(zoo.create(SPEC, seed=1))))


def reports(**more: Any) -> dict[str, Report]:
    counts = {**COUNTS, **more}
    return {d: report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=c)) for d, c in counts.items()}


def play(method: PFedHN, change: float, *, known: Any = None, number: int = 1) -> None:
    """A round in which the first two devices move their weights by `change` in opposite directions."""
    assignments = method.assign(known or reports(), number)
    emissions = {device: method.emit(device, assignments[device]) for device in ("a", "b")}
    for device, way in (("a", change), ("b", -change)):
        sent = {name: np.full_like(value, way) for name, value in emissions[device].weights.items()}
        method.absorb(device, CheckedUpdate(sent, STATS, assignments[device]))
    method.advance()


def mean_of(method: PFedHN, device: str) -> float:
    return float(np.mean(method.model_of(device)[1]["head.weight"]))


def test_devices_with_the_same_classes_get_the_same_model_without_training() -> None:
    method = make(server_rate=0.05, parallel=True)
    for number in range(1, 6):
        play(method, 0.1, number=number)
    assert mean_of(method, "c") == mean_of(method, "a") > mean_of(method, "b")


def test_learnt_vectors_follow_their_devices() -> None:
    method = make(describe="embedding", server_rate=0.1)
    play(method, 0.1)
    known = method.state().tensors
    assert not np.array_equal(known["known/a"], make(describe="embedding")._described("a", reports()["a"]))
    np.testing.assert_array_equal(known["known/c"], make(describe="embedding")._described("c", reports()["c"]))


def test_a_device_without_any_class_is_left_out_and_gets_the_common_model(caplog: pytest.LogCaptureFixture) -> None:
    method = make()
    assignments = method.assign(reports(empty=[0, 0, 0, 0]), 1)
    assert set(assignments) == {"a", "b", "c"}
    assert "holds no class at all" in caplog.text
    np.testing.assert_array_equal(method.model_of("empty")[1]["head.bias"], method.model_of("")[1]["head.bias"])


def test_a_step_too_large_is_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match="lower the rate"):
        make(server_rate=50.0).assign(reports(), 1)


def test_a_round_that_was_planned_by_another_process_is_absorbed_alike() -> None:
    """After a kill the plan is there but nobody has met the devices."""
    whole, resumed = make(parallel=True), make(parallel=True)
    assignments = whole.assign(reports(), 1)
    for method in (whole, resumed):
        for device, assignment in sorted(assignments.items()):
            sent = {name: np.full_like(value, 0.1) for name, value in whole.emit(device, assignment).weights.items()}
            method.absorb(device, CheckedUpdate(sent, STATS, assignment))
    whole.advance()
    resumed.advance()
    for name, value in whole.state().tensors.items():
        np.testing.assert_array_equal(resumed.state().tensors[name], value)


def test_a_cuda_device_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config, _ = make_config(tmp_path, method={"name": "pfedhn"}, server={"device": "cuda"})
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        make_method(config, SPEC)
