"""The comparison of simulations: what is promised of it, and our half of it as it is run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.benchmarks.peers import simulations
from fedwright.benchmarks.processes import fleet_simulation
from fedwright.protocol.errors import ConfigError


def told(cpu_s: float, mb: float, start_s: float = 1.0) -> dict[str, float]:
    return {"CPU s per round": cpu_s, "CPU s to the end of round 1": start_s, "MB": mb}


def test_ratios_are_ours_over_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"fedwright": told(0.3, 300.0), "pfl-research": told(0.5, 200.0)}
    monkeypatch.setattr(simulations, "environment_of", lambda *_: Path("python"))
    monkeypatch.setattr(simulations, "_measured", lambda *_, **__: found)

    made = simulations.compare(quick=True)
    checks = {one["name"]: one for one in made.checks}

    cpu = checks["CPU per round, share of pfl-research: lenet-valid, 100 devices"]
    memory = checks["memory, share of pfl-research: lenet-valid, 100 devices"]
    assert (cpu["value"], cpu["holds"]) == (0.6, False)
    assert (memory["value"], memory["holds"]) == (1.5, False)
    assert {row["system"] for row in made.rows} == {"fedwright", "pfl-research"}
    assert {row["devices"] for row in made.rows} == {100, 1_000, 10_000}


def test_without_the_other_system_nothing_is_said_of_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Path:
        raise ConfigError("it cannot be installed")

    starts = {100: 1.0, 1_000: 1.0, 10_000: 3.0}
    monkeypatch.setattr(simulations, "environment_of", missing)
    monkeypatch.setattr(
        simulations, "_measured", lambda fleet, *_, **__: {"fedwright": told(0.3, 300.0, starts[fleet.devices])}
    )

    made = simulations.compare(quick=True)

    assert [(one["value"], one["holds"]) for one in made.checks] == [(2.0, False)]


def test_our_half_trains_and_says_what_it_took(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.arange(12).reshape(3, 4)
    np.savez(tmp_path / "rows.npz", x=rng.random((12, 64), np.float32), y=np.arange(12) % 10, rows=rows)
    given = {"data": str(tmp_path / "rows.npz"), "rounds": 3, "drawn": 2, "batch": 2, "learning_rate": 0.1}
    found = fleet_simulation.main({**given, "model": {"model": "mlp", "classes": 10}})

    assert len(found["rounds_cpu_s"]) == 2
    assert found["first_cpu_s"] > 0
    assert json.loads(json.dumps(found)) == found
