"""`fedwright server status` tells what a method warned of and what became of devices, also when the run is over."""

import json
from pathlib import Path

import pytest

from fedwright.cli.main import main
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.notices import noticed
from helpers.simulation import make_config

SMALL = {"devices": 2, "rows": 60, "least": 2, "evaluate_every": 0}


def test_warnings_and_fates_are_in_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = make_config(tmp_path, rounds=1, method={"name": "fedconv"}, simulate=SMALL)
    (tmp_path / "run.toml").write_text(text)

    assert main(["simulate", str(tmp_path / "run.toml")]) == 0
    screen = capsys.readouterr().err
    with noticed(tmp_path / "run.simulated", events.ignore) as observe:
        observe(events.LessOffered(1, "pi", "needs 9 MB, has 5 MB"))
    assert main(["server", "status", str(tmp_path / "run.simulated")]) == 0
    status = capsys.readouterr().out
    assert main(["server", "status", str(tmp_path / "run.simulated"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert "WARNING: the server has no examples" in screen
    assert "warning: the server has no examples" in status
    assert "pi: offered less in round 1: needs 9 MB, has 5 MB" in status
    assert [(notice["kind"], notice["device"]) for notice in found["notices"]] == [
        ("warning", ""),
        ("offered less", "pi"),
    ]
