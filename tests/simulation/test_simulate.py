"""A simulation ends with the same bytes as real agents, goes on where it was stopped, and measures every device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.cli.main import main
from fedwright.device_runtime.emulate.profiles import load_profile
from fedwright.protocol.errors import ConfigError, FedwrightError, NoQuorum, RoundError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.evaluate.metrics import fleet_summary
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_reader import continued
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import Simulated, make_reports, simulate
from helpers.present import present
from helpers.resume import Killed, die_after, final_state, in_folder, state_of
from helpers.simulation import local_data, make_config, run_agents

DEVICES = 4


@pytest.mark.parametrize("processes", [0, 2], ids=["in this process", "two processes"])
def test_same_bytes_as_real_agents(tmp_path: Path, processes: int) -> None:
    config, text = make_config(tmp_path / "simulated", processes=processes, update={"codec": "int8"})
    simulate(config, text)

    over_link = replace(config, run=replace(config.run, folder=str(tmp_path / "agents")))
    dealt = deal(config.simulate, seed=config.run.seed)
    broker = MemoryBroker()
    with run_agents(broker, tmp_path / "devices", local_data(dealt)):
        runs.execute(over_link, text, link=broker.link("server"))

    assert final_state(tmp_path / "simulated") == final_state(tmp_path / "agents")


def test_updates_that_are_not_packed_give_the_same_model_and_larger_counts(tmp_path: Path) -> None:
    found = {}
    for counted in (True, False):
        config, text = make_config(tmp_path / str(counted), processes=0, simulate={"count_bytes": counted})
        found[counted] = simulate(config, text)

    assert final_state(tmp_path / "True") == final_state(tmp_path / "False")
    assert found[True].evaluations == found[False].evaluations
    up = {counted: sum(r.bytes_up for r in one.outcome.devices.values()) for counted, one in found.items()}
    assert up[True] < up[False]


def test_updates_of_four_bits_learn_as_well(tmp_path: Path) -> None:
    found = {}
    for codec in ("float32", "int4"):
        config, text = make_config(tmp_path / codec, rounds=6, processes=0, update={"codec": codec})
        found[codec] = simulate(config, text)
    up = {codec: sum(r.bytes_up for r in one.outcome.devices.values()) for codec, one in found.items()}

    assert up["int4"] < 0.2 * up["float32"]
    assert fleet_mean(found["int4"]) == pytest.approx(fleet_mean(found["float32"]), abs=0.03)


def test_models_sent_as_bf16_take_half_the_bytes_and_train_as_well(tmp_path: Path) -> None:
    found = {}
    for codec in ("float32", "bf16"):
        config, text = make_config(tmp_path / codec, rounds=6, update={"model_codec": codec})
        found[codec] = simulate(config, text)
    sizes = {codec: weights_bytes(one.folder) for codec, one in found.items()}
    accuracy = {codec: fleet_mean(one) for codec, one in found.items()}

    assert sizes["bf16"] < 0.52 * sizes["float32"]
    assert accuracy["bf16"] == pytest.approx(accuracy["float32"], abs=0.02)
    assert state_of(found["bf16"].folder) != state_of(found["float32"].folder)


def weights_bytes(folder: Path) -> int:
    """Bytes of the weights that were sent out first; the server's own state stays whole."""
    store = SqliteRoundStore(folder / "rounds.sqlite")
    try:
        return present(store.plan(Position(1, 0)))[0].task.weights.size_bytes
    finally:
        store.close()


def fleet_mean(found: Simulated) -> float:
    devices = found.evaluations[-1].devices
    return sum(device.correct for device in devices) / sum(device.n for device in devices)


def test_an_interrupted_simulation_goes_on(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "whole", rounds=3)
    whole = simulate(config, text)

    broken = in_folder(config, tmp_path / "cut")
    with pytest.raises(Killed):
        simulate(broken, text, observer=die_after(1, first_round=2))
    closed = []

    def note(event: Any) -> None:
        if isinstance(event, events.RoundClosed):
            closed.append(event.round)

    rest = simulate(broken, text, observer=note)

    assert final_state(tmp_path / "whole") == final_state(tmp_path / "cut")
    assert closed == [2, 3]
    assert len(rest.round_s) == 3
    assert [entry.round for entry in rest.evaluations] == [entry.round for entry in whole.evaluations] == [1, 2, 3]


def test_a_config_that_no_method_can_be_made_of_is_mended_and_the_run_begins(tmp_path: Path) -> None:
    wrong, wrong_text = make_config(tmp_path, method={"name": "adapters-private", "targets": ["nowhere"]})
    with pytest.raises(ConfigError, match="finds nothing to adapt"):
        simulate(wrong, wrong_text)
    right, right_text = make_config(tmp_path, rounds=1)

    done = simulate(continued(right, kind="simulated"), right_text)

    assert len(done.outcome.metrics) == 1


def test_periodic_measurement_agrees_with_the_closing_one(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=2)
    found = simulate(config, text)

    last = {entry.device: entry.accuracy for entry in found.evaluations[-1].devices}
    assert last == {device: record.accuracy_after for device, record in found.outcome.devices.items()}
    assert all(record.bytes_up > 0 and record.bytes_down > 0 for record in found.outcome.devices.values())


def test_profiles_give_devices_their_memory(tmp_path: Path) -> None:
    config, _ = make_config(tmp_path, simulate={"profiles": "demo"})
    reports = make_reports(config, deal(config.simulate, seed=1))
    assert reports["device-0"].board.profile == "raspberry-pi-4"
    assert reports["device-0"].free_bytes == load_profile("raspberry-pi-4").memory_bytes


def test_devices_without_memory_are_given_nothing_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, text = make_config(tmp_path)
    monkeypatch.setattr("fedwright.device_runtime.facts.free_bytes", lambda: 1000)
    with pytest.raises(RoundError, match=r"gave nobody anything to do in round 1; .* budgets"):
        simulate(config, text)
    assert caplog.text.count("takes no part") == DEVICES


def test_devices_whose_memory_went_refuse_and_the_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = make_config(tmp_path)
    # What the devices report is not what they have when the task comes.
    monkeypatch.setattr("fedwright.simulation.worker.need_bytes", lambda manifest, batch: 10**15)
    seen: list[Any] = []
    with pytest.raises(NoQuorum, match="refused: needs"):
        simulate(config, text, observer=seen.append)
    assert {event.device for event in seen if isinstance(event, events.TaskFailed)} == {
        f"device-{number}" for number in range(DEVICES)
    }


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "balanced-dirichlet", "shards", "few-classes"])
def test_every_partition_deals_disjoint_rows(partition: Any) -> None:
    section = SimulateSection(partition=partition, devices=5, per_device=2)
    dealt = deal(section, seed=3)
    rows = np.concatenate([share.rows for share in dealt.shares.values()])
    assert len(np.unique(rows)) == len(rows)
    assert len(dealt.shares) == 5
    again = deal(section, seed=3)
    assert all(np.array_equal(dealt.shares[d].train, again.shares[d].train) for d in dealt.shares)


def test_a_dirichlet_draw_can_be_held_to_classes() -> None:
    shares = deal(SimulateSection(devices=4, alpha=0.3, least_classes=6), seed=2)
    for share in shares.shares.values():
        rows = np.concatenate([share.train, share.val, share.test])
        assert len(np.unique(shares.y[rows])) >= 6


def test_an_owner_partition_needs_owners() -> None:
    with pytest.raises(ConfigError, match="does not say who made each example"):
        deal(SimulateSection(partition="owner"), seed=1)


def test_a_wrong_fleet_of_profiles_is_named(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, simulate={"profiles": "nowhere"})
    with pytest.raises(FedwrightError, match="nowhere"):
        simulate(config, text)


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = make_config(tmp_path)
    (tmp_path / "run.toml").write_text(text)
    assert main(["simulate", str(tmp_path / "run.toml"), "--json", str(tmp_path / "out.json")]) == 0

    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["devices"]) == DEVICES
    assert found["evaluations"][-1]["mean"] > 0
    assert found["devices"][0]["width"] == 1.0
    assert "accuracy mean" in capsys.readouterr().out


def test_an_unknown_data_set_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = make_config(tmp_path, simulate={"dataset": "cats"})
    (tmp_path / "run.toml").write_text(text)
    assert main(["simulate", str(tmp_path / "run.toml")]) == 1
    assert "unknown data set 'cats'" in capsys.readouterr().err


def test_fleet_summary_by_head() -> None:
    found = fleet_summary([0.2, 0.4, 0.9], [0.0, 0.0, np.log(4)], [1, 1, 2])
    # p10 of three sorted values lies a fifth of the way from the first to the second
    expected = {"mean": 0.5, "worst": 0.2, "p10": 0.24, "weighted_mean": 0.6, "perplexity": 2.0}
    assert found == pytest.approx(expected)


def test_config_text_round_trips(tmp_path: Path) -> None:
    config, text = make_config(tmp_path)
    assert config_from_text(text, where="x") == config
