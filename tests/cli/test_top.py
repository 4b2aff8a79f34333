"""`fedwright top`: the fleet in a terminal of its own, and plain where there is none."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog
from helpers.tools import REPO

STATS = {"holdout": 10, "correct_before": 7}
STORY: list[tuple[str, dict[str, Any]]] = [
    ("began", {"about": {"run": "pets", "method": "fedavg", "rounds": 4}}),
    (
        "joined",
        {"device": "pi", "samples": 5, "board": {"model": "Raspberry Pi 4", "ram_bytes": 4e9}, "free_bytes": 2e9},
    ),
    ("joined", {"device": "[red]nano", "samples": 5}),
    ("sent", {"round": 1, "to": {"pi": ["t", "b"], "[red]nano": ["t", "b"]}, "offers": {"pi": {"width": 0.5}}}),
    ("accepted", {"round": 1, "device": "pi", "stats": STATS}),
    ("refused", {"round": 1, "device": "[red]nano", "detail": "too hot"}),
    ("round closed", {"round": 1, "metrics": {"loss": 0.5}, "seconds": 2.0}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run."""
    made = tmp_path / "runs" / "pets"
    made.mkdir(parents=True)
    log = AuditLog(made / AUDIT, sync=False)
    for what, facts in STORY:
        log.append(what, **facts)
    log.close()
    return made


def test_a_narrow_terminal_cuts_no_device_short(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    log = AuditLog(folder / AUDIT, sync=False)
    board = {"model": "Raspberry Pi 4 Model B", "ram_bytes": 4e9}
    for number in (1, 2):
        log.append("joined", device=f"greenhouse-{number}", samples=5, board=board, free_bytes=2e9)
    log.close()

    assert main(["top", str(folder)]) == 0

    text = capsys.readouterr().out
    assert "greenhouse-1 " in text
    assert "greenhouse-2 " in text
    # Nobody has a thermometer.
    assert "temp." not in text


def test_without_a_terminal_the_fleet_is_shown_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    assert main(["top", str(folder)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "pets: fedavg, killed"
    assert "1 of 4 rounds" in lines[1]
    # Who needs somebody comes first; a name is no markup.
    assert [line.split()[0] for line in lines[4:6]] == ["[red]nano", "pi"]
    assert "refused: too hot" in lines[4]
    assert {"70.0%", "0.50", "2000", "4000"} <= set(lines[5].replace("/", " ").split())


def test_the_newest_run_is_found_and_told_to_programs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parents[1])

    assert main(["top", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["rounds_done"]) == ("pets", 1)
    assert [row["device"] for row in found["fleet"]] == ["[red]nano", "pi"]


def test_no_run_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(tmp_path)]) == 1
    assert "there is no run in" in capsys.readouterr().err


def test_on_a_terminal_it_follows_the_run_until_q(folder: Path) -> None:
    host, terminal = pty.openpty()
    command = [sys.executable, "-m", "fedwright", "top", str(folder), "--every", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "30", "PYTHONPATH": str(REPO)}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        try:
            read_until(host, "1 of 4 rounds")
            log = AuditLog(folder / AUDIT, sync=False)
            log.append("round closed", round=2, metrics={"loss": 0.4}, seconds=1.0)
            log.close()
            read_until(host, "2 of 4 rounds")
            os.write(host, b"q")
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(host)


def read_until(host: int, wanted: str) -> None:
    """Read what a terminal shows until it shows this."""
    seen, deadline_s = "", time.monotonic() + 60
    while wanted not in seen:
        ready, _, _ = select.select([host], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, f"never saw {wanted!r} in {seen[-500:]!r}"
        seen += os.read(host, 65536).decode(errors="ignore")
