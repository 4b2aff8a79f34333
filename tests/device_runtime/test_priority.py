"""An agent steps back behind the board's own programs, unless its owner says otherwise."""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from fedwright.device_runtime import start
from fedwright.device_runtime.config import AgentConfig


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs an agent that does nothing, started with a priority; returns how far it steps back from there."""
    np.savez(tmp_path / "d.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    monkeypatch.setattr(start, "open_agent", lambda config: nullcontext(MagicMock()))
    # It must not take the signals of this process.
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)

    def run(started: int, **asked: Any) -> int:
        taken: list[int] = []

        def nice(step: int) -> int:
            taken.append(step)
            return started + sum(taken)

        monkeypatch.setattr(os, "nice", nice)
        data, state = f"npz:{tmp_path / 'd.npz'}", tmp_path / "state"
        start.run_agent(AgentConfig("mqtt://h:1", "pi", data, state=state, **asked))
        return sum(taken)

    return run


def test_by_default_an_agent_steps_back(steps: Callable[..., Any]) -> None:
    assert steps(0) == 5


@pytest.mark.parametrize(
    ("started", "asked", "step"),
    [(0, 0, 0), (0, 12, 12), (5, 5, 0), (5, 7, 2), (10, 5, 0)],
    ids=["not at all", "far", "emulated", "emulated and further", "started further back"],
)
def test_it_goes_as_far_as_asked_and_never_forward(
    steps: Callable[..., Any], started: int, asked: int, step: int
) -> None:
    assert steps(started, nice=asked) == step
