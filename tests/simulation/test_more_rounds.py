"""A run that is given more rounds ends as one that had them from the start, and keeps a bounded number of tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events, old_tasks
from fedwright.server_runtime.rounds.store.base import Position, evaluation_after
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_reader import open_run, with_rounds
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed, final_state
from helpers.simulation import local_data, make_config, run_agents

FEDCONV = dict.fromkeys(("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"), 1)
METHODS = {
    "fedavg": {"name": "fedavg"},
    "personal layers": {"name": "fedconv", "personal_layers": ["head"], **FEDCONV},
    "relays": {"name": "hyperflora", "pretrain_rounds": 1, "exchanges": 1},
    "generated models": {"name": "framp"},
}
MODELS = {"hyperflora": {"model": "cnn-lora"}, "fedconv": {"model": "lenet"}}


def in_folder(config: RunConfig, folder: Path) -> RunConfig:
    return replace(config, run=replace(config.run, folder=str(folder)))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_more_rounds_end_in_the_same_bytes(tmp_path: Path, method: dict[str, Any]) -> None:
    config, text = make_config(
        tmp_path / "whole", rounds=4, method=method, update={"codec": "int8"}, public={"rows": 24},
        model=MODELS.get(method["name"], {}),
    )  # fmt: skip
    simulate(config, text)
    grown = in_folder(config, tmp_path / "grown")
    for rounds in (2, 3, 4):
        simulate(with_rounds(grown, rounds), text)

    assert final_state(tmp_path / "grown") == final_state(tmp_path / "whole")
    store = SqliteRoundStore(tmp_path / "grown/run/rounds.sqlite")
    measured = [store.plan(evaluation_after(number)) for number in (1, 2, 3, 4)]
    store.close()
    assert [plan and len(plan) for plan in measured] == [None, 4, 4, 4]


def test_more_rounds_over_a_link_with_the_same_living_devices(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "simulated", rounds=3)
    simulate(config, text)
    served = in_folder(config, tmp_path / "served")
    seen: list[events.Event] = []
    broker = MemoryBroker()
    with run_agents(broker, tmp_path / "devices", local_data(deal(config.simulate, seed=config.run.seed))):
        for rounds in (1, 3):
            link = broker.link("server")
            outcome = runs.execute(with_rounds(served, rounds), text, link=link, observer=seen.append)
            link.close()

    assert final_state(tmp_path / "served") == final_state(tmp_path / "simulated")
    assert {record.rounds for record in outcome.devices.values()} == {3}
    stages = [(event.round, event.evaluation) for event in seen if isinstance(event, events.StagePlanned)]
    assert stages == [(1, False), (1, True), (2, False), (3, False), (3, True)]


def test_a_run_that_was_stopped_while_it_was_measured_can_be_given_more_rounds(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "whole", rounds=3)
    simulate(config, text)
    grown = in_folder(config, tmp_path / "grown")

    def die(event: Any) -> None:
        if isinstance(event, events.UpdateTaken) and event.evaluation:
            raise Killed

    with pytest.raises(Killed):
        simulate(with_rounds(grown, 2), text, observer=die)
    stopped = open_run(tmp_path / "grown/run")
    assert (stopped.rounds_done, stopped.complete) == (2, False)
    found = simulate(grown, text)

    assert final_state(tmp_path / "grown") == final_state(tmp_path / "whole")
    assert open_run(tmp_path / "grown/run").complete
    assert {record.rounds for record in found.outcome.devices.values()} == {3}
    store = SqliteRoundStore(tmp_path / "grown/run/rounds.sqlite")
    replies = store.replies(evaluation_after(2))
    store.close()
    assert sorted({reply.outcome for reply in replies.values()}) == ["late", "update"]


@pytest.mark.parametrize(("fleet", "answers"), [({}, 24), ({"buffer": 3}, 18)], ids=["in step", "asynchronous"])
def test_records_stay_right_when_tasks_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: dict[str, int], answers: int
) -> None:
    found = {}
    for keep in (100, 2):
        monkeypatch.setattr(old_tasks, "KEEP_ROUNDS", keep)
        config, text = make_config(tmp_path / str(keep), rounds=6, fleet=fleet, simulate={"evaluate_every": 0})
        found[keep] = simulate(config, text).outcome.devices
        assert open_run(tmp_path / str(keep) / "run").devices.keys() == found[keep].keys()
    store = SqliteRoundStore(tmp_path / "2/run/rounds.sqlite")
    kept = [store.plan(Position(number, 0)) is not None for number in range(1, 7)]
    store.close()

    assert kept == [False] * 4 + [True] * 2
    assert [steady(record) for record in found[2].values()] == [steady(record) for record in found[100].values()]
    # The four devices were measured at the end, too.
    assert sum(record.answers for record in found[2].values()) == answers + 4


def steady(record: DeviceRecord) -> DeviceRecord:
    """A record without what a clock says."""
    return replace(record, task_s=0.0, cpu_s=0.0, peak_rss_bytes=0, energy_j=None)


def test_a_long_run_keeps_no_more_than_the_tasks_of_its_last_rounds(tmp_path: Path) -> None:
    sizes = {}
    for rounds in (old_tasks.KEEP_ROUNDS + 5, old_tasks.KEEP_ROUNDS + 30):
        config, text = make_config(
            tmp_path / str(rounds), rounds=rounds, model={"model": "mlp"}, simulate={"evaluate_every": 0, "rows": 80}
        )
        simulate(config, text)
        sizes[rounds] = (tmp_path / str(rounds) / "run/rounds.sqlite").stat().st_size

    short, long = sizes.values()
    # A round's figures stay; they take some 200 bytes, whatever the number of devices.
    assert long - short < 25 * 500
