"""What a method learns when it plans a round is saved with the plan: a run that was killed inside it ends the same."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from fedwright.protocol.messages import Report
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.hasa import Roster
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.stage import planning_notes, restore_planning
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation import simulate as simulations
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.simulate import Simulated, make_reports, simulate
from helpers.fleet import setting
from helpers.resume import Killed, final_state
from helpers.simulation import make_config

HASA = {"name": "hasa", "budget": 0.5, "least": 0.25, "most": 1.0}
SMALL = {"rows": 160, "evaluate_every": 0}


def die_at_first_update(event: events.Event) -> None:
    if isinstance(event, events.UpdateTaken):
        raise Killed


def other_reports(config: RunConfig, dealt: Dealt) -> dict[str, Report]:
    """The devices come back and count their samples the other way round, so that everyone would get another width."""
    return {
        device: structs.replace(r, data=structs.replace(r.data, class_counts=[1] * 9 + [r.data.samples * number]))
        for number, (device, r) in enumerate(make_reports(config, dealt).items())
    }


def kill_and_resume(config: RunConfig, text: str, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """A run whose server dies at its first update and goes on with devices that report something else."""
    with pytest.raises(Killed):
        simulate(config, text, observer=die_at_first_update)
    store = SqliteRoundStore(Path(config.run.folder) / "run/rounds.sqlite")
    assert store.closed() == []
    store.close()
    with monkeypatch.context() as patched:
        patched.setattr(simulations, "make_reports", other_reports)
        return simulate(config, text)


def widths_of(found: Simulated) -> dict[str, float]:
    return {device: record.width for device, record in found.outcome.devices.items()}


def elsewhere(config: RunConfig, folder: Path) -> RunConfig:
    return replace(config, run=replace(config.run, folder=str(folder)))


def test_a_run_killed_inside_its_first_round_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, text = make_config(tmp_path / "killed", rounds=2, method=HASA, fleet={"per_round": 2}, simulate=SMALL)
    found = kill_and_resume(config, text, monkeypatch)

    undisturbed = simulate(elsewhere(config, tmp_path / "undisturbed"), text)
    assert final_state(tmp_path / "killed") == final_state(tmp_path / "undisturbed")
    assert widths_of(found) == widths_of(undisturbed)
    assert len(set(widths_of(found).values())) > 1


def test_a_secure_sum_outlives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, section = {**HASA, "secure_sum": True}, {**SMALL, "hide_counts": True}
    config, text = make_config(tmp_path / "killed", rounds=2, method=method, fleet={"per_round": 3}, simulate=section)
    found = kill_and_resume(config, text, monkeypatch)

    undisturbed = simulate(elsewhere(config, tmp_path / "undisturbed"), text)
    assert final_state(tmp_path / "killed") == final_state(tmp_path / "undisturbed")
    assert widths_of(found) == widths_of(undisturbed)


def test_widths_outlive_a_kill_in_asynchronous_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = make_config(
        tmp_path / "killed", rounds=2, method=HASA, fleet={"buffer": 2, "per_round": 2}, simulate=SMALL
    )
    found = kill_and_resume(config, text, monkeypatch)

    undisturbed = simulate(elsewhere(config, tmp_path / "undisturbed"), text)
    assert widths_of(found) == widths_of(undisturbed)


def test_every_device_that_is_there_counts_and_not_only_the_sampled_ones(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=1, method=HASA, fleet={"per_round": 1}, simulate=SMALL)
    simulate(config, text)

    store = SqliteRoundStore(tmp_path / "run/rounds.sqlite")
    notes = MethodState.read(store.notes(Position(1, 0))).record("roster", Roster)
    store.close()
    assert sorted(notes.known) == [f"device-{number}" for number in range(4)]


def test_a_method_that_learns_nothing_leaves_no_notes() -> None:
    method = FedAvg(FedAvgParams(), setting())
    assert planning_notes(method) == b""
    restore_planning(method, b"")
