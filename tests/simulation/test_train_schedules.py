"""Local steps and learning rates per round: the same tasks in a simulation, over a link, and after a resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Recipe
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed, final_state
from helpers.simulation import local_data, make_config, run_agents

STEPPED = {"steps": 3, "schedule": {"kind": "step", "every": 2, "factor": 0.5, "warmup_rounds": 1}}
# 0.1 halved while it warms up, then whole for two rounds, then halved again.
RATES = [0.05, 0.1, 0.1, 0.05]


def recipes(folder: Path, rounds: int) -> list[Recipe]:
    """Of the first device of every round."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    plans = [store.plan(Position(number, 0)) for number in range(1, rounds + 1)]
    store.close()
    return [plan[0].task.recipe for plan in plans if plan]


def kill_in_round(number: int) -> Any:
    def observe(event: events.Event) -> None:
        if isinstance(event, events.StagePlanned) and event.round == number:
            raise Killed

    return observe


def test_devices_take_so_many_steps_at_the_rate_of_the_round(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=4, train=STEPPED)
    simulate(config, text)

    told = recipes(tmp_path, 4)
    assert [recipe.learning_rate for recipe in told] == pytest.approx(RATES)
    assert {recipe.steps for recipe in told} == {3}
    store = SqliteRoundStore(tmp_path / "run/rounds.sqlite")
    replies = [store.reply(planned.task.task) for planned in store.plan(Position(4, 0)) or []]
    store.close()
    assert {reply.update.stats.steps for reply in replies if reply and reply.update} == {3}


@pytest.mark.parametrize("kind", ["cosine", "exponential"])
def test_a_resumed_run_and_one_over_a_link_end_with_the_same_bytes(tmp_path: Path, kind: str) -> None:
    train = {"steps": 2, "schedule": {"kind": kind, "factor": 0.9, "warmup_rounds": 1}}
    config, text = make_config(tmp_path / "whole", rounds=3, train=train)
    simulate(config, text)
    stopped = replace(config, run=replace(config.run, folder=str(tmp_path / "stopped")))
    with pytest.raises(Killed):
        simulate(stopped, text, observer=kill_in_round(3))
    simulate(stopped, text)
    served = replace(config, run=replace(config.run, folder=str(tmp_path / "served")))
    broker = MemoryBroker()
    with run_agents(broker, tmp_path / "devices", local_data(deal(config.simulate, seed=config.run.seed))):
        runs.execute(served, text, link=broker.link("server"), observer=events.ignore)

    whole = final_state(tmp_path / "whole")
    assert final_state(tmp_path / "stopped") == whole
    assert final_state(tmp_path / "served") == whole


def test_asynchronous_rounds_learn_at_the_rate_of_the_version(tmp_path: Path) -> None:
    fleet = {"devices": 4, "buffer": 4}
    config, text = make_config(tmp_path, rounds=4, fleet=fleet, train=STEPPED)
    simulate(config, text)

    assert [recipe.learning_rate for recipe in recipes(tmp_path, 4)] == pytest.approx(RATES)
