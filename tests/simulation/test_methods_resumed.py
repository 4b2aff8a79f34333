"""Every method, stopped when a round was planned and resumed on devices that by now have less memory free."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime import facts
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation.simulate import simulate
from helpers.present import present
from helpers.simulation import make_config

ROUNDS = 2
PARAMS: dict[str, dict[str, Any]] = {
    "pfedhn": {"server_rate": 0.06, "momentum": 0.0, "parallel": True},
    "hyperflora": {"pretrain_rounds": 1, "exchanges": 1},
    "adapters-private": {"pretrain_rounds": 1},
}


class Stopped(Exception):
    """The server's process is gone."""


def stop_when_planned(event: Any) -> None:
    """Ends the server when its last round is planned and before anything is sent."""
    if isinstance(event, events.StagePlanned) and event.round == ROUNDS:
        raise Stopped


def least_need(folder: Path) -> int:
    """What the smallest task of the last round needs."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    plan = store.plan(Position(ROUNDS, 0))
    store.close()
    builder = Builder(folder / "run/artifacts")
    return min(
        need_bytes(builder.build(planned.assignment.structure).manifest, planned.assignment.recipe.batch)
        for planned in present(plan)
    )


@pytest.mark.parametrize("method", sorted(METHODS))
def test_devices_that_lost_memory_are_offered_less_by_a_resumed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    config, text = make_config(
        tmp_path,
        rounds=ROUNDS,
        fleet={"devices": 2},
        model={"model": METHODS[method].model},
        method={"name": method, **PARAMS.get(method, {})},
        public={"rows": 60 if METHODS[method].needs_public else 0},
        simulate={"devices": 2, "rows": 120, "evaluate_every": 0},
    )
    with pytest.raises(Stopped):
        simulate(config, text, observer=stop_when_planned)
    free = least_need(tmp_path) - 1
    monkeypatch.setattr(facts, "free_bytes", lambda: free)
    offered = []

    def note(event: Any) -> None:
        offered.extend([event] if isinstance(event, events.LessOffered) else [])

    found = simulate(config, text, observer=note)

    assert {event.device for event in offered if event.round == ROUNDS} == {"device-0", "device-1"}
    assert all(record.rounds == ROUNDS for record in found.outcome.devices.values())
