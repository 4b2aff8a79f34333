"""Simulated devices that are away in some rounds: the run ends, and ends the same after a kill."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fedwright.device_runtime.emulate.profiles import ProfileValue, load_fleet, load_profile
from fedwright.protocol.messages import Gone, Report
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.transport.device_channel import Heard
from fedwright.simulation import absences
from fedwright.simulation.absences import FrailFleet, Frailty, away_ratio, away_ratios, is_away
from fedwright.simulation.simulate import simulate
from helpers.fleet import report
from helpers.present import present
from helpers.resume import Killed, die_after, final_state, in_folder
from helpers.simulation import make_config


def test_the_share_of_the_time_without_power_by_hand() -> None:
    up, away = (ProfileValue(seconds, "nominal", "this test") for seconds in (30.0, 10.0))

    assert away_ratio(replace(load_profile("pc"), up_s=up, away_s=away)) == 0.25
    assert away_ratio(load_profile("pc")) == 0.0
    assert away_ratios(None, ["a"]) == {}
    assert sorted(away_ratios("frail", ["a", "b", "c", "d"])) == ["a", "c"]


def test_devices_are_away_in_their_share_of_the_rounds() -> None:
    away = sum(is_away(1, number, "d", 0.25) for number in range(4000))

    assert away == pytest.approx(1000, rel=0.1)


def test_who_is_waited_for_in_vain_comes_back(tmp_path: Path) -> None:
    fleet = FrailFleet({device: report() for device in "ab"}, cast(Any, None), Frailty({"a": 1.0}, 1), devices=tmp_path)

    first = [(event.device, type(event.message)) for event in fleet.poll(0.0) if isinstance(event, Heard)]
    second = [(event.device, type(event.message)) for event in fleet.poll(0.0) if isinstance(event, Heard)]

    assert first == [("a", Report), ("b", Report), ("a", Gone)]
    assert second == [("a", Report)]
    assert fleet.poll(0.0) == []


def taking_part(folder: Path, rounds: int) -> list[set[str]]:
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return [
            {planned.device for planned in present(store.plan(Position(number, 0)))} for number in range(1, rounds + 1)
        ]
    finally:
        store.close()


def test_a_run_of_frail_devices_ends_and_ends_the_same_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = {"device-0": 0.5, "device-2": 0.5}
    monkeypatch.setattr("fedwright.simulation.simulate.away_ratios", lambda fleet, devices: ratios)
    config, text = make_config(tmp_path / "calm", rounds=4, simulate={"evaluate_every": 0})
    simulate(config, text)

    killed = in_folder(config, tmp_path / "killed")
    with pytest.raises(Killed):
        simulate(killed, text, observer=die_after(1, first_round=3))
    simulate(killed, text)

    present = taking_part(tmp_path / "calm", 4)
    everyone = {f"device-{number}" for number in range(4)}
    for number, devices in enumerate(present, start=1):
        assert devices == {d for d in everyone if not is_away(5, number, d, ratios.get(d, 0.0))}
    assert any(devices != everyone for devices in present)
    assert taking_part(tmp_path / "killed", 4) == present
    assert final_state(tmp_path / "killed") == final_state(tmp_path / "calm")


def test_a_config_names_a_frail_fleet(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=2, simulate={"profiles": "frail", "evaluate_every": 0})
    found = simulate(config, text)

    assert len(found.round_s) == 2
    assert load_fleet("frail").members[0].up_s == 20
    assert absences.next_round(RunFolder(tmp_path / "run")) == 3
