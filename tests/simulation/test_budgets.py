"""Budgets from the config and from devices' reports decide about widths in a whole run."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedwright.protocol.messages import Report
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile
from fedwright.server_runtime import zoo
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation import simulate as simulations
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.simulate import make_reports, simulate
from helpers.present import present
from helpers.simulation import make_config

METHOD = {"name": "fedrolex", "levels": {"sizes": [1.0, 0.5, 0.25], "choose": "budget"}}
NO_MODELS = {"evaluate_every": 0}


def widths(folder: Path, number: int = 1) -> dict[str, float]:
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        plan = store.plan(Position(number, 0))
    finally:
        store.close()
    return {planned.device: zoo.width_of(planned.assignment.structure.spec) for planned in present(plan)}


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
