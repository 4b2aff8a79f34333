"""`fedwright new` makes a folder that runs; `fedwright doctor` looks at a host."""

import json
import sys
from pathlib import Path

import pytest

from fedwright.api import host
from fedwright.cli.main import main
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.registry import METHODS


def test_a_new_folder_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["new", "my-fleet"]) == 0
    monkeypatch.chdir("my-fleet")
    text = Path("run.toml").read_text().replace("# processes =", "processes = 0 #")
    Path("run.toml").write_text(text)

    assert main(["simulate", "run.toml", "--rounds", "2", "--json", "result.json"]) == 0

    result = json.loads(Path("result.json").read_text())
    assert result["run"] == "my-fleet"
    assert len(result["devices"]) == 10


@pytest.mark.parametrize("method", ["hasa", "hyperflora", "scalefl"])
def test_its_config_is_good_for_other_methods(method: str, tmp_path: Path) -> None:
    assert main(["new", str(tmp_path / "fleet"), "--method", method]) == 0

    config = config_from_text((tmp_path / "fleet/run.toml").read_text(), where="run.toml")

    assert config.method.name == method
    assert (config.model.model == METHODS[method].model) is (METHODS[method].model != "cnn-small")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("mine")

    assert main(["new", str(tmp_path)]) == 1

    assert "is there already; choose another name" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["kept.txt"]


def test_the_doctor_is_content_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json", "--runs", str(tmp_path / "runs")]) == 0

    findings = json.loads(capsys.readouterr().out)
    assert any(finding["what"].startswith("torch ") for finding in findings)
    assert not (tmp_path / "runs").exists()


def test_the_doctor_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "PACKAGES", ("numpy", "no-such-package"))
    monkeypatch.setattr(host, "find_mosquitto", lambda: None)

    assert main(["doctor", "--runs", str(tmp_path)]) == 1

    said = capsys.readouterr().out
    assert 'FAIL  no-such-package is not installed -> pip install "fedwright[server]"' in said
    assert "WARN  mosquitto is not installed" in said
