"""Rounds in which most updates cannot be believed do not end a run: it keeps its model, then goes back to its best."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.errors import NoQuorum
from fedwright.protocol.messages import Stats
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.spoilt_rounds import SPOILT, Verdicts
from helpers.any_fleet import conduct_any, share_artifacts, strange, usual_summary
from helpers.fleet import report
from helpers.resume import Killed, final_state

DEVICES, LIARS = "abcdefghij", "ghij"
ROUNDS = 6
CONFIG = """
[run]
name = "run"
folder = "{folder}"
rounds = {rounds}
[fleet]
devices = 10
[model]
model = "mlp"
[method]
name = "fedavg"
[export]
global_model = false
"""
# The loss of the model that a round was sent: least in the second.
LOSSES = {1: 3.0, 2: 1.0, 3: 2.0, 4: 9.0, 5: 1.5, 6: 1.4}


def stats(number: int) -> Stats:
    return Stats(24, 1, 0.1, 0.1, 1, loss_first=LOSSES[number], loss_last=0.5)


def diverging(*rounds: int) -> Any:
    """A device whose training diverges in these rounds."""

    def answer(task: Any, values: Any) -> Any:
        # The same in every run, whatever its tasks are called.
        values = {name: np.full_like(value, 0.01 * task.round) for name, value in values.items()}
        bad = task.round in rounds and bool(values)
        return stats(task.round), strange(values, "nan") if bad else values

    return answer


def live(folder: Path, answers: Any, *, seen: Any = None, observer: Any = None) -> list[dict[str, float]]:
    """One life of a server; the rounds' metrics."""
    text = CONFIG.format(folder=folder, rounds=ROUNDS)
    told = report(data=usual_summary((4,), 2))
    outcome = conduct_any(
        config_from_text(text, where="test"),
        text,
        reports=dict.fromkeys(DEVICES, told),
        answers=answers,
        observer=observer or (lambda event: None if seen is None else seen.append(event)),
    )
    return outcome.metrics


def spoilt(metrics: list[dict[str, float]]) -> list[float]:
    return [round_metrics.get(SPOILT, 0.0) for round_metrics in metrics]


def fresh(tmp_path: Path, name: str) -> Path:
    share_artifacts(tmp_path / name, tmp_path / "graphs")
    return tmp_path / name


def astray() -> dict[str, Any]:
    """Six honest devices diverge in rounds 3 and 4; four liars never do."""
    return dict.fromkeys(DEVICES, diverging(3, 4)) | dict.fromkeys(LIARS, diverging())


def test_a_minority_that_leads_the_model_astray_does_not_end_the_run(tmp_path: Path) -> None:
    seen: list[Any] = []

    metrics = live(fresh(tmp_path, "run"), astray(), seen=seen)

    assert spoilt(metrics) == [0, 0, 1, 1, 0, 0]
    assert [one["updates"] for one in metrics] == [10, 10, 0, 0, 10, 10]
    told = [event.text for event in seen if isinstance(event, events.Warned)]
    assert "the model stays as it was" in told[0]
    assert "goes back to the model of round 1" in told[1]
    assert all("update.combine = 'outliers'" in text for text in told)
    assert all(np.isfinite(value).all() for value in tensors.load(final_state(tmp_path / "run")).values())


def test_a_killed_server_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def die(event: Any) -> None:
        if isinstance(event, events.Warned) and "goes back" in event.text:
            raise Killed

    live(fresh(tmp_path, "whole"), astray())
    with pytest.raises(Killed):
        live(fresh(tmp_path, "killed"), astray(), observer=die)
    live(tmp_path / "killed", astray())

    assert final_state(tmp_path / "killed") == final_state(tmp_path / "whole")


def test_a_majority_of_nonsense_holds_nobody_up(tmp_path: Path) -> None:
    answers = dict.fromkeys("abcdef", diverging(*range(1, ROUNDS + 1))) | dict.fromkeys(LIARS, diverging())

    metrics = live(fresh(tmp_path, "run"), answers)

    assert spoilt(metrics) == [0] * ROUNDS
    assert [one["updates"] for one in metrics] == [4] * ROUNDS


def test_a_run_in_which_nothing_was_ever_believed_says_so(tmp_path: Path) -> None:
    answers = dict.fromkeys(DEVICES, diverging(*range(1, ROUNDS + 1)))

    with pytest.raises(NoQuorum, match=r"round 1 got no update that can be believed from any device .*not finite"):
        live(fresh(tmp_path, "run"), answers)
    assert spoilt(live(tmp_path / "run", dict.fromkeys(DEVICES, diverging()))) == [0] * ROUNDS


@pytest.mark.parametrize(
    ("believed", "rejected", "lately", "verdict"),
    [("ab", "cde", "abcde", True), ("ab", "cd", "abcd", False), ("ab", "cde", "ab", False), ("", "c", "", True)],
    ids=["most of the known", "half", "strangers", "nobody left"],
)
def test_what_is_spoilt(believed: str, rejected: str, lately: str, verdict: bool) -> None:
    assert Verdicts(frozenset(believed), frozenset(rejected)).is_spoilt(lately) is verdict
