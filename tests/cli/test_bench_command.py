"""`fedwright bench`: which suites run, what is written, and what the exit code says."""

import argparse
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedwright.cli import bench
from fedwright.cli.main import main
from helpers.tools import REPO

KEYS = {"suite", "date", "command", "versions", "machine", "seeds", "tables", "checks"}


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A suite of this test's own; what it returns can be changed."""
    result = {
        "tables": {"speed": [{"model": "a", "ratio": 0.5}]},
        "checks": [{"name": "ratio", "value": 0.5, "target": "<= 1.0", "holds": True}],
    }
    module = ModuleType("own_suite")
    module.run = lambda args: json.loads(json.dumps(result))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_suite", module)
    monkeypatch.setattr(bench, "present_suites", lambda: {"own": ("own_suite", "a suite of this test")})
    return result


def test_list_names_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0

    assert "train-step" in capsys.readouterr().out


@pytest.mark.parametrize("option", bench.OPTIONS)
def test_an_option_is_for_the_suites_that_read_it(option: str) -> None:
    kept, suites = bench.OPTIONS[option]
    sources = {
        name: REPO / "benchmarks" / f"{module.replace('.', '/')}.py" for name, (module, _) in bench.SUITES.items()
    }
    reads = [
        name
        for name, file in sources.items()
        if re.search(rf'args\.{kept}\b|args, "{kept}"', file.read_text(encoding="utf-8"))
    ]

    assert sorted(reads) == sorted(suites)


def test_the_list_has_the_options_of_each_suite(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--list"])

    [chaos] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("chaos")]
    assert chaos.endswith("[--methods --kills --edges]")


def test_json_has_the_promised_form(
    suite: dict[str, dict[str, list[dict[str, float | str]]] | list[dict[str, float | str]]], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"

    assert main(["bench", "own", "--json", str(file)]) == 0

    written = json.loads(file.read_text())
    assert set(written) == KEYS
    assert written["suite"] == "own"
    assert written["checks"] == suite["checks"]


@pytest.mark.parametrize(("holds", "strict", "code"), [(True, True, 0), (False, True, 1), (False, False, 0)])
def test_strict_turns_a_missed_target_into_the_exit_code(
    suite: dict[str, Any],
    holds: bool,
    strict: bool,
    code: int,
) -> None:
    suite["checks"][0]["holds"] = holds

    assert main(["bench", "own", *(["--strict"] if strict else [])]) == code


def test_unknown_suite_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "nonsense"]) == 1

    assert "unknown suite 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "0"], "--seeds 0: give at least one"),
        (["--methods", "fedavg"], "--methods is for the suite devices or chaos alone; leave it out for own"),
        (["--fleet", "demo"], "--fleet is for the suite devices alone"),
        (["--kills", "3"], "--kills is for the suite chaos or scale alone"),
        (["--threads", "1"], "--threads is for the suite train-step alone"),
        (["--models", "mlp"], "--models is for the suites that --list shows with it alone; leave it out for own"),
        (["--seeds", "2"], "--seeds is for the suites that --list shows with it alone; leave it out for own"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_before_anything_runs(
    suite: dict[str, dict[str, list[dict[str, float | str]]] | list[dict[str, float | str]]],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    assert main(["bench", "own", *words]) == 1

    assert says in capsys.readouterr().err


def test_the_folder_of_a_result_is_made(
    suite: dict[str, dict[str, list[dict[str, float | str]]] | list[dict[str, float | str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "own", "--json", str(tmp_path / "new" / "result.json")]) == 0
    assert (tmp_path / "new" / "result.json").is_file()

    with pytest.raises(SystemExit) as ended:
        main(["bench", "own", "--json", str(tmp_path / "new" / "result.json" / "inside.json")])
    assert ended.value.code == 2
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.slow
def test_train_step_measures_both_sides() -> None:
    from fedwright.benchmarks.suites import train_step

    result = train_step.run(argparse.Namespace(models=["mlp"], threads=[1], quick=True, peers=[]))

    (row,) = result["tables"]["steps"]
    assert row["cpu_ratio"] == pytest.approx(row["portable_cpu_ms"] / row["torch_cpu_ms"])
    assert 20 < row["portable_peak_mb"] < row["torch_peak_mb"]
    about_agent = {"agent import, CPU s", "agent import, peak MB", "agent install, MB"}
    assert {check["name"] for check in result["checks"]} == about_agent
    assert result["tables"]["peers"] == [
        {
            "model": "mlp",
            "torch": pytest.approx(1 / row["cpu_ratio"]),
            "torch.compile": None,
            "jax": None,
            "onnxruntime-training": None,
            "ours / best": pytest.approx(row["cpu_ratio"]),
        }
    ]
    assert result["tables"]["install_mb"]["device"] < result["tables"]["install_mb"]["torch"]
