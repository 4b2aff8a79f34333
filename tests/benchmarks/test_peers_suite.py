"""The suite peers without the systems that it measures: what it tells while it goes on, and how packages come."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from fedwright.benchmarks.peers import flower, ours, sizes, suite
from fedwright.benchmarks.peers.scene import PeerResult
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.steps import listening

RESULT = PeerResult([1.0, 2.0], 1.0, 50.0, 1.0, 1.0, 0.5)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Measurements are made up; what is told is kept."""
    monkeypatch.setattr(suite, "prepare", lambda scene: None)
    monkeypatch.setattr(sizes, "own_mb", lambda: 80.0)
    monkeypatch.setattr(sizes, "installed_mb", lambda *given: 800.0)
    monkeypatch.setattr(flower, "version", lambda python: "1.42")
    for system in (ours, flower):
        monkeypatch.setattr(system, "measure", lambda *given, **named: RESULT)
        for victim in ("device", "server"):
            monkeypatch.setattr(system, f"survive_{victim}", lambda *given: "goes on")
    return []


def test_every_measurement_is_a_step(heard: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "environment", lambda: Path("python"))

    with listening(lambda *told: heard.append(told)):
        found = suite.run(Namespace(quick=True))

    # Once after the last measurement, once at the end.
    assert heard == [("measurements", done, 7) for done in (*range(8), 7)]
    assert [row["system"] for row in next(iter(found["tables"].values()))][-1] == "flower 1.42"
    assert len(found["checks"]) == 6


def test_without_flower_the_work_still_comes_to_its_end(
    heard: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise ConfigError("Flower cannot be installed here")

    monkeypatch.setattr(flower, "environment", fail)

    with listening(lambda *told: heard.append(told)):
        found = suite.run(Namespace(quick=True))

    assert heard[-2:] == [("measurements", 4, 7), ("measurements", 7, 7)]
    assert (found["notes"], found["checks"]) == (["Flower cannot be installed here"], [])


def test_packages_come_one_by_one_and_each_is_a_step(
    heard: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"install": [{"metadata": {"name": name, "version": "2.0"}} for name in ("flwr", "grpcio")]}
    called: list[str] = []

    def run(*command: str) -> str:
        called.append(command[-1])
        return json.dumps(plan) if "--dry-run" in command else ""

    monkeypatch.setattr(flower, "_run", run)
    with listening(lambda *told: heard.append(told)):
        flower.install_each(Path("python"), "flwr>=1.40")

    assert called == ["flwr>=1.40", "flwr==2.0", "grpcio==2.0"]
    assert [done for _, done, _ in heard] == [0, 1, 2, 2]


def test_a_package_index_that_fails_is_said_in_one_sentence(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: no such package' >&2\nexit 1\n")
    python.chmod(0o755)

    with pytest.raises(ConfigError, match="so it is not measured; pip said: ERROR: no such package"):
        flower.install_each(python, "flwr")
