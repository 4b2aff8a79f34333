"""`bench --track`: every simulation of a suite and its checks are told, each in a folder of its own."""

import importlib
import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedwright.benchmarks.harness.suite import Job, check, run_jobs, with_tracking
from fedwright.cli import bench
from fedwright.cli.main import main

JOB = Job(
    "fed avg / digits",
    1,
    {
        "run": {"name": "small", "rounds": 2, "seed": 1},
        "fleet": {"devices": 2},
        "model": {"model": "mlp"},
        "method": {"name": "fedavg"},
        "export": {"global_model": False},
        "simulate": {"devices": 2, "rows": 80, "processes": 0},
    },
)


def small_suite(args: Namespace) -> dict[str, Any]:
    """A suite of one simulation."""
    [done] = run_jobs([JOB])
    return {"seeds": [1], "tables": {}, "checks": [check("rounds, all", len(done.metrics), "= 2", holds=True)]}


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(bench, "present_suites", lambda: {"small": ("small", "one simulation")})
    found = importlib.import_module
    made = {"small": SimpleNamespace(run=small_suite)}
    monkeypatch.setattr(importlib, "import_module", lambda name, *more: made.get(name) or found(name, *more))


def test_simulations_and_checks_of_a_suite_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, tmp_path)

    assert main(["bench", "small", "--track", "jsonl", "--track-to", str(tmp_path / "told")]) == 0

    of_suite = tmp_path / "told" / "small"
    [rounds] = (of_suite / "fed-avg-digits-1").rglob("rounds.jsonl")
    told = [json.loads(line) for line in rounds.read_text().splitlines()]
    assert [line["round"] for line in told if "seconds" in line] == [1, 2]
    [line] = (of_suite / "checks" / "rounds.jsonl").read_text().splitlines()
    figures = json.loads(line)
    assert (figures["rounds-all"], figures["holds/rounds-all"]) == (2.0, 1.0)
    assert with_tracking(JOB) is JOB
    # Not a word of a bar, because this is no terminal.
    assert capsys.readouterr().err == ""


def test_a_tool_that_does_not_exist_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, tmp_path)

    assert main(["bench", "small", "--track", "paper", "--track-to", str(tmp_path / "told")]) == 1

    assert "there is no tool 'paper' to track with" in capsys.readouterr().err
    assert not (tmp_path / "told").exists()
