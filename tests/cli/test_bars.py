"""Bars: on a terminal with the time that is left, silent elsewhere."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fedwright.cli import device
from fedwright.cli.bars import bars
from fedwright.protocol.support.steps import counted, listening, steps
from helpers.tools import REPO

COUNT = """
from fedwright.cli.bars import bars
from fedwright.protocol.support.steps import counted
with bars():
    print([(a, b) for a in counted([1, 2], "boards") for b in counted([3, 4, 5], "graphs")])
"""


def on_terminal(*words: str) -> tuple[str, str]:
    """What a Python program prints, and what is seen of it on a terminal."""
    host, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(REPO)}
    with subprocess.Popen([sys.executable, *words], stderr=terminal, stdout=subprocess.PIPE, env=environment) as made:
        os.close(terminal)
        seen = b""
        # A terminal whose last writer has gone fails to be read.
        with suppress(OSError):
            while part := os.read(host, 65536):
                seen += part
        os.close(host)
        said, _ = made.communicate()
    assert made.returncode == 0, seen
    return said.decode(), seen.decode()


def test_without_a_terminal_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with bars():
        assert list(counted(["a", "b"], "boards")) == ["a", "b"]
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_all_work_has_its_bar_also_inside_of_other_work() -> None:
    said, seen = on_terminal("-c", COUNT)

    assert said == "[(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]\n"
    assert all(part in seen for part in ("boards", "2/2", "graphs", "3/3"))
    # Of the last step and what is left then.
    assert "0:00:0" in seen


def test_an_artifact_that_is_built_shows_how_far_it_is(tmp_path: Path) -> None:
    command = ("-m", "fedwright", "artifact", "build", "mlp", "--json", "--input-shape", "4", "--classes", "2")

    said, seen = on_terminal(*command, "-o", str(tmp_path / "graph"))

    assert said.startswith("{")
    assert "building mlp" in seen
    assert "4/4" in seen


def fail() -> None:
    with steps("graphs", 3) as advance:
        advance()
        raise KeyError


def test_work_that_fails_leaves_no_bar_and_nobody_listening() -> None:
    heard: list[tuple[str, int, int]] = []

    with listening(lambda *told: heard.append(told)), pytest.raises(KeyError):
        fail()
    list(counted([1], "later"))

    assert heard == [("graphs", 0, 3), ("graphs", 1, 3), ("graphs", 3, 3)]


def test_a_profile_says_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    show = device._progress()
    now_s[0] = 105.0

    show(1, 4, "Conv")

    assert "1/4  15 s left Conv" in capsys.readouterr().err
