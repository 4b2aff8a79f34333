"""Whose a folder is, how many rounds its run is to have, and what is said of folders that cannot be used."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.errors import ConfigError, NoQuorum
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime.config import RunConfig, config_from_text
from fedwright.server_runtime.rounds.store.base import Closed, Position, RunRecord
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run import execute
from fedwright.server_runtime.run_folder.folder import folder_of, record_run
from fedwright.server_runtime.run_folder.rounds import set_aside
from fedwright.server_runtime.run_reader import continued, find_run, open_run, with_rounds
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import deal
from helpers.simulation import local_data, make_config, run_agents

TEXT = """
[run]
name = "night"
folder = "{folder}"
rounds = {rounds}
[fleet]
broker = "mqtt://{host}:1883"
[train]
learning_rate = {rate}
[method]
name = "fedavg"
"""


def written(folder: Path, *, rounds: int = 10, host: str = "here", rate: float = 0.1) -> tuple[RunConfig, str]:
    text = TEXT.format(folder=folder, rounds=rounds, host=host, rate=rate)
    return config_from_text(text, where="run.toml"), text


def begin(config: RunConfig, text: Any, *, done: int = 0, kind: Any = "served", begun: bool = True) -> RunRecord:
    """A run in its folder after so many rounds."""
    folder = folder_of(config)
    folder.path.mkdir(parents=True, exist_ok=True)
    with closing(SqliteRoundStore(folder.store)) as store:
        record = record_run(store, folder, config, text, kind=kind)
        if begun:
            store.update_run(replace(record, spec=ModelSpec("mlp", (4,), 2)))
        for number in range(1, done + 1):
            store.close_stage(Closed(Position(number, 0), "state", {"loss": 1.0}))
        return record


def rounds_of(config: RunConfig, rounds: int | None = None) -> int:
    return continued(config, kind="served", rounds=rounds).run.rounds


def test_rounds_of_a_config_or_of_the_command(tmp_path: Path) -> None:
    config, _ = written(tmp_path, rounds=10)
    assert (rounds_of(config), rounds_of(config, 20)) == (10, 20)
    with pytest.raises(ConfigError, match="rounds"):
        rounds_of(config, 0)


def test_rounds_that_a_command_added_stay_until_the_config_says_otherwise(tmp_path: Path) -> None:
    config, text = written(tmp_path, rounds=10)
    begin(with_rounds(config, 20), text, done=12)

    assert rounds_of(config) == 20
    assert rounds_of(written(tmp_path, rounds=30)[0]) == 30
    assert rounds_of(written(tmp_path, rounds=15)[0]) == 15
    assert rounds_of(config, 12) == 12
    with pytest.raises(ConfigError, match="has done 12 rounds, which cannot be taken back to 11; ask for more"):
        rounds_of(config, 11)
    assert open_run(tmp_path / "night").config.run.rounds == 20


def test_rounds_that_the_config_added_are_those_of_the_run(tmp_path: Path) -> None:
    begin(*written(tmp_path, rounds=2), done=2)
    longer, text = written(tmp_path, rounds=4)
    begin(continued(longer, kind="served"), text)

    past = open_run(tmp_path / "night")
    assert (past.config.run.rounds, past.rounds_done, past.complete) == (4, 2, False)
    assert rounds_of(longer) == 4


def test_an_address_may_change_and_what_is_learnt_may_not(tmp_path: Path) -> None:
    begin(*written(tmp_path), done=1)

    assert rounds_of(written(tmp_path, host="there")[0]) == 10
    with pytest.raises(ConfigError, match="started with another config; go on with that one as it was, start anew"):
        rounds_of(written(tmp_path, rate=0.2)[0])


def test_a_run_that_no_device_has_joined_takes_any_config_and_can_be_resumed(tmp_path: Path) -> None:
    first = begin(*written(tmp_path), begun=False)
    past = open_run(tmp_path / "night")
    other, text = written(tmp_path, rate=0.2)
    assert rounds_of(other) == 10
    second = begin(other, text, begun=False)

    assert (past.begun, past.complete, past.config.train.learning_rate) == (False, False, 0.1)
    assert find_run(other) is None
    assert open_run(tmp_path / "night").config.train.learning_rate == 0.2
    assert first.identity == second.identity != ""


def test_a_folder_holds_one_kind_of_run(tmp_path: Path) -> None:
    config, text = written(tmp_path)
    begin(config, text, kind="simulated")

    with pytest.raises(ConfigError, match="holds a simulation and cannot hold a run over a broker as well; give this"):
        continued(config, kind="served")
    with pytest.raises(ConfigError, match="holds a simulation and cannot hold a run over a broker as well"):
        begin(config, text, kind="served")
    assert continued(config, kind="simulated") == config
    assert open_run(tmp_path / "night").kind == "simulated"


def test_each_run_that_is_begun_anew_gets_a_folder(tmp_path: Path) -> None:
    config, text = written(tmp_path)
    assert set_aside(folder_of(config)) is None
    records: list[Any] = []
    for _ in range(3):
        records.append(begin(config, text, done=len(records)))
        assert set_aside(folder_of(config)) == tmp_path / f"night.{len(records)}"

    assert len({record.identity for record in records}) == 3
    assert [open_run(tmp_path / f"night.{number}").rounds_done for number in (1, 2, 3)] == [0, 1, 2]
    # What is set aside can be gone on with where it is.
    assert open_run(tmp_path / "night.3").config.run.name == "night.3"


def test_a_run_that_gave_up_waiting_for_devices_goes_on_with_the_config_that_was_mended(tmp_path: Path) -> None:
    broker = MemoryBroker()
    hasty, text = make_config(tmp_path, rounds=1, fleet={"devices": 9, "join_timeout_s": 0.1})
    with pytest.raises(NoQuorum, match="only 0 of 9 devices are present"):
        execute(hasty, text, link=broker.link("server"))
    waiting = open_run(tmp_path / "run")
    mended, text = make_config(tmp_path, rounds=1, train={"learning_rate": 0.2})
    with run_agents(broker, tmp_path / "devices", local_data(deal(mended.simulate, seed=5))):
        execute(continued(mended, kind="served"), text, link=broker.link("server"))

    done = open_run(tmp_path / "run")
    assert (waiting.begun, waiting.rounds_done, waiting.devices) == (False, 0, {})
    assert (done.complete, done.config.train.learning_rate, len(done.devices)) == (True, 0.2, 4)
