"""`fedwright simulate`: a folder of its own, more rounds, begun anew; and `server` commands that look at it."""

import json
from pathlib import Path

import onnxruntime
import pytest

from fedwright.cli.main import main
from helpers.simulation import make_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config that was simulated for two rounds, in the current folder."""
    monkeypatch.chdir(tmp_path)
    _, text = make_config(Path("runs"), rounds=2, model={"model": "mlp"}, export={"global_model": True})
    (tmp_path / "run.toml").write_text(text)
    assert main(["simulate", "run.toml"]) == 0
    return tmp_path / "run.toml"


def test_a_simulation_has_a_folder_of_its_own_and_says_what_it_is(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [path.name for path in (config.parent / "runs").iterdir()] == ["run.simulated"]
    assert main(["server", "status"]) == 0
    assert "runs/run.simulated: a simulation, fedavg, 2 of 2 rounds, complete" in capsys.readouterr().out
    assert main(["server", "resume", "runs/run.simulated"]) == 1
    assert "runs/run.simulated holds a simulation; go on with `fedwright simulate CONFIG`" in capsys.readouterr().err


def test_a_complete_simulation_says_so_and_can_be_given_more_rounds(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["simulate", "run.toml"]) == 0
    assert (
        "runs/run.simulated is complete with 2 rounds; give it more with `fedwright simulate run.toml --rounds 4`, or "
        "start anew with `fedwright simulate run.toml --anew` (this run is kept) or another run.name"
    ) in capsys.readouterr().out
    assert main(["simulate", "run.toml", "--rounds", "3", "--json", "three.json"]) == 0
    assert "is complete" not in capsys.readouterr().out
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 4"))
    assert main(["simulate", "run.toml", "--json", "four.json"]) == 0

    results = [json.loads((config.parent / name).read_text()) for name in ("three.json", "four.json")]
    assert [(found["run"], found["rounds"], len(found["metrics"])) for found in results] == [
        ("run", 3, 3),
        ("run", 4, 4),
    ]
    assert [entry["round"] for entry in results[1]["evaluations"]] == [1, 2, 3, 4]


def test_a_run_of_fewer_rounds_than_its_file_says_is_offered_those(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 9").replace('name = "run"', 'name = "short"'))
    assert main(["simulate", "run.toml", "--rounds", "1"]) == 0
    assert main(["simulate", "run.toml"]) == 0

    assert "give it more with `fedwright simulate run.toml --rounds 9`" in capsys.readouterr().out


def test_the_audit_log_is_in_words(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["server", "audit", "runs/run.simulated"]) == 0

    text = capsys.readouterr().out
    assert "about (run run" in text
    assert "offers (device-0 (width 1, rank 0, " in text
    assert not set("{}[]'\"") & set(text.replace(str(config.parent), ""))


def test_a_simulation_that_is_begun_anew_ends_in_the_same_model(config: Path) -> None:
    runs = config.parent / "runs"
    assert main(["simulate", "run.toml", "--anew"]) == 0

    assert sorted(path.name for path in runs.iterdir()) == ["run.simulated", "run.simulated.1"]
    assert (runs / "run.simulated/model.onnx").read_bytes() == (runs / "run.simulated.1/model.onnx").read_bytes()


def test_export_knows_the_devices_of_a_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "export", "--device", "nosuch", "model.onnx"]) == 1
    assert capsys.readouterr().err == (
        "fedwright: no device 'nosuch' has answered in the run in runs/run.simulated; those that have are device-0, "
        "device-1, device-2, device-3 [FW100]\n"
    )
    assert not (config.parent / "model.onnx").exists()
    assert main(["server", "export", "--device", "device-2", "model.onnx"]) == 0
    onnxruntime.InferenceSession(config.parent / "model.onnx")
