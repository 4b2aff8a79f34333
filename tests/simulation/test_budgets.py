"""Budgets from the config and from devices' reports decide about widths in a whole run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol import tensors
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Report
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile, need_bytes
from fedwright.server_runtime import run as runs
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Planned, Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.simulation import simulate as simulations
from fedwright.simulation.dealing import Dealt, deal
from fedwright.simulation.simulate import make_reports, simulate
from helpers.present import present
from helpers.resume import final_state
from helpers.simulation import local_data, make_config, run_agents

METHOD = {"name": "fedrolex", "levels": {"sizes": [1.0, 0.5, 0.25], "choose": "budget"}}
NO_MODELS = {"evaluate_every": 0}


def planned_in(folder: Path, number: int = 1) -> tuple[Planned, ...]:
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return tuple(present(store.plan(Position(number, 0))))
    finally:
        store.close()


def widths(folder: Path, number: int = 1) -> dict[str, float]:
    plan = planned_in(folder, number)
    return {planned.device: zoo.width_of(planned.assignment.structure.spec) for planned in plan}


def refusals(seen: list[Any]) -> list[Any]:
    return [event for event in seen if isinstance(event, (events.LessOffered, events.TaskFailed))]


@pytest.mark.parametrize(("round_mb", "width"), [(10.0, 1.0), (0.05, 0.5), (0.012, 0.25)])
def test_mb_per_round_of_a_config_decide_about_widths(tmp_path: Path, round_mb: float, width: float) -> None:
    config, text = make_config(tmp_path, rounds=1, method=METHOD, simulate=NO_MODELS, budget={"round_mb": round_mb})
    found = simulate(config, text)

    assert set(widths(tmp_path).values()) == {width}
    assert all(record.bytes_up + record.bytes_down < 2e6 * round_mb + 4e5 for record in found.outcome.devices.values())


def slow(factor: float) -> bytes:
    row = [0.0] * len(FEATURES)
    row[FEATURES.index("flops")] = 1e-9 * factor
    kinds = {kind: row for kind in ("Conv", "Gemm", "MatMul", "MatMul many", "ConvTranspose")}
    return Profile("board", "runtime", 1, kinds=kinds).to_json()


def test_of_two_devices_with_the_same_seconds_the_slower_gets_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(config: RunConfig, dealt: Dealt) -> dict[str, Report]:
        reports = make_reports(config, dealt)
        for device, factor in (("device-0", 1.0), ("device-1", 40.0)):
            reports[device] = structs.replace(reports[device], profile=slow(factor), round_s=5.0)
        return reports

    monkeypatch.setattr(simulations, "make_reports", told)
    config, text = make_config(tmp_path, rounds=1, method=METHOD, simulate=NO_MODELS)
    seen: list[Any] = []
    simulate(config, text, observer=seen.append)

    found = widths(tmp_path)
    assert found["device-0"] == found["device-2"] == 1.0
    assert found["device-1"] < 1.0
    assert refusals(seen) == []


def test_what_the_server_offers_no_device_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = make_config(tmp_path, rounds=1, method=METHOD, simulate=NO_MODELS)
    need = 25_000_000
    monkeypatch.setattr("fedwright.device_runtime.facts.free_bytes", lambda: need)
    seen: list[Any] = []
    simulate(config, text, observer=seen.append)

    assert set(widths(tmp_path).values()) < {1.0, 0.5, 0.25}
    assert refusals(seen) == []


def test_a_device_short_of_memory_trains_the_same_model_more_slowly(tmp_path: Path) -> None:
    spec = ModelSpec("cnn-small", (1, 8, 8), 10)
    leanest = Structure(spec, parts=True, recompute=True)
    memory_mb = need_bytes(Builder().build(leanest).manifest, 8) / 1e6 + 0.001
    states: dict[str, dict[str, Any]] = {}
    for name, budget in (
        ("rich", {}),
        ("slower", {"memory_mb": memory_mb, "short_of_memory": "slower"}),
        ("narrower", {"memory_mb": memory_mb}),
    ):
        config, text = make_config(tmp_path / name, simulate=NO_MODELS, budget=budget)
        simulate(config, text)
        states[name] = tensors.load(final_state(tmp_path / name))

    recipes = [planned.assignment.recipe for planned in planned_in(tmp_path / "slower")]
    assert {(recipe.batch, recipe.part) for recipe in recipes} == {(32, 8)}
    assert {planned.assignment.recipe.batch < 32 for planned in planned_in(tmp_path / "narrower")} == {True}
    for name, value in states["rich"].items():
        np.testing.assert_allclose(states["slower"][name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    assert any(not np.allclose(states["narrower"][name], value, atol=1e-3) for name, value in states["rich"].items())


def test_agents_end_with_the_bytes_of_the_simulation_in_parts_too(tmp_path: Path) -> None:
    leanest = Structure(ModelSpec("cnn-small", (1, 8, 8), 10), parts=True, recompute=True)
    memory_mb = need_bytes(Builder().build(leanest).manifest, 8) / 1e6 + 0.001
    budget = {"memory_mb": memory_mb, "short_of_memory": "slower"}
    config, text = make_config(tmp_path / "simulated", budget=budget)
    simulate(config, text)
    over_link = replace(config, run=replace(config.run, folder=str(tmp_path / "agents")))
    broker = MemoryBroker()

    with run_agents(broker, tmp_path / "devices", local_data(deal(config.simulate, seed=config.run.seed))):
        runs.execute(over_link, text, link=broker.link("server"))

    assert {planned.assignment.recipe.part for planned in planned_in(tmp_path / "agents")} == {8}
    assert final_state(tmp_path / "simulated") == final_state(tmp_path / "agents")
