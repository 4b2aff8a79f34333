"""Runs whose sums have noise of all devices: what is told, what is accounted, and where they end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.privacy.accounting import Release, epsilon
from fedwright.server_runtime.run_reader import open_run
from fedwright.simulation.simulate import simulate
from helpers.resume import state_of
from helpers.simulation import make_config

FLEET: dict[str, Any] = {
    "fleet": {"devices": 6},
    "model": {"model": "mlp"},
    "update": {"secure": True},
    "simulate": {"devices": 6, "rows": 180, "partition": "iid", "evaluate_every": 0},
}


def run(folder: Path, *, rounds: int = 1, **privacy: Any) -> tuple[dict[str, np.ndarray], list[events.UpdateTaken]]:
    seen: list[events.UpdateTaken] = []
    private = {"kind": "distributed", "clip": 0.5, **privacy} if privacy else {"kind": "none"}
    clip = {} if privacy else {"clip_norm": 0.5}
    sections = {**FLEET, "update": {"secure": True, **clip}, "privacy": private}
    config, text = make_config(folder, rounds=rounds, **sections)
    simulate(config, text, observer=lambda event: seen.append(event) if isinstance(event, events.UpdateTaken) else None)
    return dict(tensors.load(state_of(folder / "run"))), [event for event in seen if not event.evaluation]


def test_the_model_has_the_noise_that_is_promised_and_updates_tell_nothing_else(tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "plain")
    noisy, told = run(tmp_path / "noisy", noise_multiplier=2.0)

    away = np.concatenate([(noisy[name] - plain[name]).reshape(-1) for name in plain if plain[name].dtype.kind == "f"])
    # Six members of whom four shares are counted on two: sqrt(6 / (5 - 1)) of what is promised, over six of them.
    shares = (6 / 4) ** 0.5
    assert away.std() == pytest.approx(2.0 * 0.5 * shares / 6, rel=0.1)
    assert len(told) == 6
    for event in told:
        stats = event.stats
        assert (stats.loss_first, stats.loss_last, stats.correct_before, stats.correct_after) == (None,) * 4


def test_every_sum_is_accounted_for_by_device_and_the_run_stops_before_its_budget(tmp_path: Path) -> None:
    limit = epsilon([Release(4.0, 1.0, 2)], 1e-5, whole=True) + 0.01
    run(tmp_path, rounds=4, noise_multiplier=4.0, epsilon=limit)

    past = open_run(tmp_path / "run")
    assert past.privacy is not None
    assert (past.rounds_done, past.spent) == (2, True)
    assert past.privacy.by_device == dict.fromkeys((f"device-{n}" for n in range(6)), pytest.approx(limit - 0.01))
    assert "a device's change, or none" in past.privacy.assumptions


def test_without_a_multiplier_there_is_as_much_noise_as_the_budget_asks_for(tmp_path: Path) -> None:
    run(tmp_path, rounds=2, epsilon=3.0)

    past = open_run(tmp_path / "run")
    assert past.privacy is not None
    assert past.rounds_done == 2
    assert 2.9 < past.privacy.epsilon <= 3.0


def test_a_method_that_is_told_more_than_changes_is_refused(tmp_path: Path) -> None:
    private = {"kind": "distributed", "noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match="kind 'distributed' does not work with fedmd"):
        make_config(tmp_path, method={"name": "fedmd"}, update={"secure": True}, privacy=private)
