"""Bars of suites: on a terminal with the time that is left, silent elsewhere."""

import os
import pty
import subprocess
import sys

import pytest

from fedwright.benchmarks.harness.progress import stepped
from fedwright.cli import device
from helpers.tools import REPO

SCRIPT = "from fedwright.benchmarks.harness.progress import stepped; print(list(stepped([1, 2, 3], 'boards')))"


def test_without_a_terminal_items_come_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(stepped(["a", "b"], "boards")) == ["a", "b"]
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_with_what_is_done() -> None:
    host, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], stderr=terminal, stdout=subprocess.PIPE, env=environment, check=True
    )
    os.close(terminal)
    seen = os.read(host, 65536).decode()
    os.close(host)

    assert done.stdout == b"[1, 2, 3]\n"
    assert "boards" in seen
    assert "3/3" in seen


def test_a_profile_says_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    show = device._progress()
    now_s[0] = 105.0

    show(1, 4, "Conv")

    assert "1/4  15 s left Conv" in capsys.readouterr().err
