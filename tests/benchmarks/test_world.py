"""The suite of public architectures: its list, its child process, and what it tells of failures."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedwright.benchmarks.processes import architecture
from fedwright.benchmarks.suites import world
from fedwright.protocol.errors import ConfigError

SPEC = {"name": "own/net", "library": "own", "model": "net", "input": "image", "shape": [6]}


class Bessel(nn.Module):
    """A function that nothing here can write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = torch.special.bessel_j0(x)
        return answer


def _network(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, architecture.CLASSES))


def test_list_is_long_enough_and_quick_names_are_in_it() -> None:
    every = [entry["name"] for entry in world.architectures(world.read_list())]
    document = world.read_list()

    quick = world.chosen(document, None, quick=True)

    assert len(set(every)) == len(every) >= world.LEAST_ARCHITECTURES
    assert {entry["name"] for entry in quick} == set(document["quick"]["models"])


def test_unknown_architecture_is_named() -> None:
    with pytest.raises(ConfigError, match="no architecture of the list is called lenet-9000"):
        world.chosen(world.read_list(), ["lenet-9000"], quick=False)


def test_an_architecture_that_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "make", lambda spec: _network(nn.Tanh()))

    row = architecture.measure(SPEC)

    assert row["built"]
    assert row["agrees"]
    assert row["error"] <= max(architecture.SAME_CHANGE, 2 * row["torch_error"])
    assert row["parameters"] == 6 * 8 + 8 + 8 * 5 + 5
    assert 0 < row["artifact_bytes"] < 30_000


def test_an_architecture_that_does_not_build_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "make", lambda spec: _network(Bessel()))

    row = architecture.measure(SPEC)

    assert not row["built"]
    assert "bessel_j0" in row["reason"]


def test_an_architecture_that_disagrees_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(artifact: Any, weights: Any, batch: Any) -> tuple[list[float], Mapping[str, Any]]:
        losses, changes = real(artifact, weights, batch)
        return losses, {name: 1.01 * change for name, change in changes.items()}

    real = architecture.device_steps
    monkeypatch.setattr(architecture, "device_steps", wrong)
    monkeypatch.setattr(architecture, "make", lambda spec: _network(nn.Tanh()))

    row = architecture.measure(SPEC)

    assert row["built"]
    assert not row["agrees"]
    assert "changes 1.0e-02 from float64" in row["reason"]


def test_a_process_that_dies_is_a_failure_with_a_reason() -> None:
    limits = {"memory_bytes": 1 << 40, "cpu_s": 60, "wall_s": 120}

    with world.Measurers(Path(sys.executable), limits) as measurers:
        row = measurers.measure(SPEC | {"library": "no_such_library"})

    assert not row["built"]
    assert "no_such_library" in row["reason"]


def test_a_child_that_is_ended_from_outside_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "measure", lambda spec: os.kill(os.getpid(), signal.SIGKILL))

    row = architecture.measure_apart(SPEC, memory_bytes=1 << 40, cpu_s=60, wall_s=120)

    assert row == {"built": False, "agrees": False, "reason": "its process ended with -9"}
