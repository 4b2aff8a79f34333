"""Runs in which devices hide their samples: what is told, what is accounted, and when a device may not go on."""

from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.privacy.accounting import Release, epsilon
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER, Ledger
from fedwright.server_runtime.run_reader import open_run
from fedwright.simulation.simulate import simulate
from helpers.simulation import make_config

PRIVACY = {"kind": "example", "noise_multiplier": 0.8, "clip": 1.0}
MODEL = {"model": "mlp"}
SMALL = {"evaluate_every": 0, "rows": 160}


def test_updates_say_what_was_enforced_and_nothing_of_samples(tmp_path: Path) -> None:
    seen: list[events.UpdateTaken] = []
    config, text = make_config(tmp_path, rounds=2, model=MODEL, privacy=PRIVACY, simulate=SMALL)
    simulate(config, text, observer=lambda event: seen.append(event) if isinstance(event, events.UpdateTaken) else None)

    trained = [event for event in seen if not event.evaluation]
    assert len(trained) == 8
    for event in trained:
        stats = event.stats
        assert stats.privacy is not None
        assert (stats.privacy.clip, stats.privacy.noise_multiplier, stats.privacy.steps) == (1.0, 0.8, stats.steps)
        assert stats.privacy.sample_ratio == pytest.approx(min(1.0, 32 / stats.samples))
        assert (stats.loss_first, stats.loss_last, stats.correct_before, stats.correct_after) == (None,) * 4


@pytest.mark.parametrize("model", ["mlp", "python:helpers.own_models:slopes"], ids=["norms", "sample by sample"])
def test_each_device_is_accounted_by_its_own_samples_and_steps(tmp_path: Path, model: str) -> None:
    config, text = make_config(tmp_path, rounds=2, model={"model": model}, privacy=PRIVACY, simulate=SMALL)
    found = simulate(config, text)

    past = open_run(tmp_path / "run")
    assert past.privacy is not None
    for device, record in found.outcome.devices.items():
        samples = record.samples
        told = Release(0.8, min(1.0, 32 / samples), 2 * -(-samples // 32))
        assert past.privacy.by_device[device] == pytest.approx(epsilon([told], 1e-5))
    assert past.privacy.epsilon == max(past.privacy.by_device.values())


def test_a_device_whose_budget_is_used_up_is_left_out_and_the_run_ends_without_any(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=1, model=MODEL, privacy=PRIVACY, simulate=SMALL)
    simulate(config, text)
    one = Ledger(tmp_path / "run" / LEDGER).by_device()
    # the cheapest device may train three times, the dearest fewer
    thrice = [[Release(r.noise_multiplier, r.sample_ratio, 3 * r.count) for r in told] for told in one.values()]
    limit = min(epsilon(told, 1e-5) for told in thrice)
    private = {**PRIVACY, "epsilon": limit + 1e-6}
    config, text = make_config(tmp_path / "more", rounds=9, model=MODEL, privacy=private, simulate=SMALL)
    simulate(config, text)

    past = open_run(tmp_path / "more" / "run")
    assert past.privacy is not None
    assert past.rounds_done == 3
    assert past.complete
    assert max(past.privacy.by_device.values()) <= limit + 1e-6


def test_a_method_with_terms_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kind 'example' does not work with fedprox"):
        make_config(tmp_path, method={"name": "fedprox"}, privacy=PRIVACY)
