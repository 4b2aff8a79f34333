"""A run under [privacy]: counts what it tells, survives kills without counting twice, and stops at its budget."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import RunConfig, config_from_text
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.audit import read_audit
from fedwright.server_runtime.rounds.privacy.accounting import Release, epsilon
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER, Ledger
from fedwright.server_runtime.rounds.privacy.round_privacy import central_noise
from fedwright.server_runtime.run_reader import open_run
from helpers.any_fleet import conduct_any, usual_summary
from helpers.fleet import report
from helpers.resume import Killed, die_at_event

TOLD = report(data=usual_summary((1, 8, 8), 4))
CONFIG = """
[run]
name = "run"
folder = "{folder}"
rounds = 4
[fleet]
devices = {devices}
sample_ratio = {ratio}
[model]
model = "mlp"
[method]
name = "fedavg"
[privacy]
kind = "central"
{privacy}
"""


def make(folder: Path, privacy: str, *, devices: int = 4, ratio: float = 1.0) -> tuple[RunConfig, str]:
    text = CONFIG.format(folder=folder, privacy=privacy, devices=devices, ratio=ratio)
    return config_from_text(text, where="test"), text


def run(config: RunConfig, text: str, observer: events.Observer = events.ignore) -> Any:
    reports = {f"d{number:02}": TOLD for number in range(config.fleet.devices)}
    return conduct_any(config, text, reports=reports, answers={}, observer=observer)


def test_every_round_is_in_the_ledger_the_audit_log_status_and_the_model(tmp_path: Path) -> None:
    config, text = make(tmp_path, "noise_multiplier = 2.0")
    outcome = run(config, text)

    wanted = epsilon([Release(2.0, 1.0, 4)], 1e-5)
    past = open_run(tmp_path / "run")
    assert past.privacy is not None
    assert past.privacy.epsilon == pytest.approx(wanted)
    assert past.privacy.by_device == dict.fromkeys(["d00", "d01", "d02", "d03"], past.privacy.epsilon)
    told = [line["epsilon"] for line in read_audit(tmp_path / "run") if line["what"] == "privacy"]
    assert told == [round(epsilon([Release(2.0, 1.0, n)], 1e-5), 4) for n in (1, 2, 3, 4)]
    metadata = {entry.key: entry.value for entry in onnx.load(outcome.model).metadata_props}
    model = json.loads(metadata["privacy"])
    assert (model["epsilon"], model["delta"], model["rounds"]) == (round(wanted, 4), 1e-5, 4)
    assert "one device more or less" in model["assumptions"]


def test_a_run_ends_before_its_budget_is_passed_and_stays_ended(tmp_path: Path) -> None:
    # two rounds cost less than this, three more
    limit = epsilon([Release(2.0, 1.0, 2)], 1e-5) + 0.1
    config, text = make(tmp_path, f"noise_multiplier = 2.0\nepsilon = {limit}")
    run(config, text)
    run(config, text)

    past = open_run(tmp_path / "run")
    assert (past.rounds_done, past.complete, past.spent) == (2, True, True)
    assert past.privacy is not None
    assert past.privacy.epsilon <= limit


@pytest.mark.parametrize("moment", [6, 8, 11, 13])
def test_a_server_that_is_killed_counts_no_round_twice_and_forgets_none(moment: int, tmp_path: Path) -> None:
    config, text = make(tmp_path, "noise_multiplier = 2.0\nquantile = 0.5")
    with pytest.raises(Killed):
        run(config, text, die_at_event(moment))
    run(config, text)

    ledger = Ledger(tmp_path / "run" / LEDGER)
    assert sorted(ledger.rounds()) == [(0, 1, 0), (0, 2, 0), (0, 3, 0), (0, 4, 0)]
    # the clip of each round is what the one before left, also over the kill
    after = {0: 1.0} | {number: ledger.clip_after(number) for number in range(1, 5)}
    for (_, number, _), entries in ledger.rounds().items():
        assert entries[-1].clip == after[number - 1]
    assert len(set(after.values())) == 5


def test_without_a_noise_multiplier_the_rounds_use_the_budget_up(tmp_path: Path) -> None:
    config, text = make(tmp_path, "epsilon = 3.0", devices=30, ratio=0.6)
    run(config, text)

    past = open_run(tmp_path / "run")
    assert past.privacy is not None
    assert 2.9 < past.privacy.epsilon <= 3.0
    assert past.rounds_done == 4


def test_devices_are_drawn_by_themselves_and_not_by_the_seed(tmp_path: Path) -> None:
    drawn = []
    for name in ("one", "other"):
        config, text = make(tmp_path / name, "noise_multiplier = 1.0", devices=30, ratio=0.6)
        run(config, text, lambda event: drawn.append(event) if isinstance(event, events.StagePlanned) else None)

    numbers = [len(event.devices) for event in drawn if not event.evaluation]
    assert len({event.devices for event in drawn if not event.evaluation}) == 8
    assert len(set(numbers)) > 1


def test_lots_that_fall_on_nobody_too_often_are_refused(tmp_path: Path) -> None:
    config, _ = make(tmp_path, "epsilon = 3.0", devices=10, ratio=0.1)
    with pytest.raises(ConfigError, match="raise sample_ratio, or set it to 1"):
        central_noise(config)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[privacy]\nkind = "central"', "noise_multiplier and epsilon are both absent"),
        ('[privacy]\nkind = "example"', "noise_multiplier is absent"),
        ("[privacy]\nepsilon = 1.0", "kind is 'none' but other settings are given"),
        ('[privacy]\nkind = "central"\nepsilon = 1.0\n[update]\ncombine = "median"', "set it to 'mean'"),
        ('[privacy]\nkind = "central"\nepsilon = 1.0\n[fleet]\nbuffer = 3', "remove fleet.buffer"),
        ('[privacy]\nkind = "central"\nepsilon = -1.0', "epsilon"),
        ('[privacy]\nkind = "central"\nepsilon = 1.0\n[update]\nsecure = true', "or kind = 'distributed'"),
        ('[privacy]\nkind = "distributed"\nepsilon = 1.0', "set update.secure = true"),
        ('[privacy]\nkind = "distributed"', "noise_multiplier and epsilon are both absent"),
        (
            '[privacy]\nkind = "distributed"\nepsilon = 1.0\n[update]\nsecure = true\nclip_norm = 1.0',
            "leave update.clip_norm out",
        ),
    ],
)
def test_settings_that_cannot_hold_are_refused_in_a_sentence(more: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_from_text(f'[method]\nname = "fedavg"\n{more}\n', where="test")
