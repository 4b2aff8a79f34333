"""What plugs in from outside, by command: the code of the documents runs word for word."""

import json
import os
import sys
from pathlib import Path

import pytest

from fedwright.cli.main import main
from helpers.outside_package import (
    HALF_STEP,
    OWN_METHOD,
    example,
    install_example,
    installed,
    shown_blocks,
    write_half_step,
)
from helpers.tools import run

__all__ = ["example", "installed"]

SCRIPT = Path(sys.executable).with_name("fedwright")
LISTED = {
    "methods": ("half-step", "my_package.half_step:HalfStep of the package my-package"),
    "models": ("two-layers", "my_package.two_layers:make of the package my-package"),
    "datasets": ("rings", "my_package.rings:load of the package my-package"),
    "profiles": ("house", "fleet: thermostats and a laptop (package my-package)"),
}
SMALL = "[simulate]\ndevices = 3\nrows = 200\n"
SPAWNED = "processes = 2\n"


def fedwright(folder: Path, *words: str, **environment: str) -> str:
    """What the installed command says in a folder, with nothing else to find modules by."""
    variables = {**os.environ, "PYTHONPATH": "", **environment}
    return run(["env", "-C", str(folder), str(SCRIPT), *words], env=variables)


def test_the_method_of_the_document_runs_from_an_empty_folder(tmp_path: Path) -> None:
    write_half_step(tmp_path)
    [in_config] = [block for block in shown_blocks(OWN_METHOD, "toml") if "[method]" in block]
    (tmp_path / "run.toml").write_text(in_config + "processes = 0\n")

    assert f"run.toml is good: {HALF_STEP} on cnn-small, 2 rounds" in fedwright(tmp_path, "validate", "run.toml")
    fedwright(tmp_path, "simulate", "run.toml", "--json", "result.json")

    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["method"], result["rounds"], len(result["devices"])) == (HALF_STEP, 2, 4)


def test_everything_of_the_example_package_runs_together(tmp_path: Path) -> None:
    package, folder = tmp_path / "site-packages", tmp_path / "run"
    install_example(package)
    folder.mkdir()
    config = '[method]\nname = "half-step"\n[model]\nmodel = "two-layers"\n[run]\nrounds = 2\n'
    (folder / "run.toml").write_text(config + SMALL + SPAWNED + 'dataset = "rings"\nprofiles = "house"\n')

    fedwright(folder, "simulate", "run.toml", "--json", "result.json", PYTHONPATH=str(package))

    result = json.loads((folder / "result.json").read_text())
    assert (result["method"], len(result["devices"])) == ("half-step", 3)


@pytest.mark.parametrize("name", LISTED)
def test_a_list_has_a_line_for_what_a_package_offers(
    name: str, example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thing, summary = LISTED[name]

    assert main([name, "--json"]) == 0
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["name"] == thing]
    assert main([name]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.split()[0] == thing]

    assert (row["summary"], row["package"]) == (summary, "my-package")
    assert summary in line
    assert "my_package" not in sys.modules


def test_listing_survives_a_package_that_cannot_be_imported(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example / "my_package" / "__init__.py").write_text("raise RuntimeError('broken')\n")

    assert [main([name]) for name in LISTED] == [0] * len(LISTED)
    capsys.readouterr()
    assert main(["init", "half-step"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedwright: method 'half-step' of the package my-package: module 'my_package.half_step' ")
    assert "(RuntimeError: broken)" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["half-step", "python:my_package.half_step:HalfStep"])
def test_init_writes_what_validate_accepts(
    name: str, example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", name]) == 0
    text = capsys.readouterr().out
    (tmp_path / "run.toml").write_text(text)

    assert text.startswith(f"# {name}: FedAvg that applies a share of the mean change\n")
    assert f'[method]\nname = "{name}"\nshare = 0.5               # how much of the mean change is applied\n' in text
    assert main(["validate", str(tmp_path / "run.toml")]) == 0
    assert f"is good: {name} on cnn-small" in capsys.readouterr().out


def test_an_error_inside_a_method_from_outside_names_it(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "from fedwright.server_runtime.methods.baselines.fedavg import FedAvg\n"
    text += "class Wrong(FedAvg):\n    def __init__(self, params, setting): raise KeyError('rate')\n"
    (installed / "wrong_method.py").write_text(text)
    (tmp_path / "run.toml").write_text('[method]\nname = "python:wrong_method:Wrong"\n[simulate]\ndevices = 2\n')

    assert main(["validate", str(tmp_path / "run.toml")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedwright: python:wrong_method:Wrong cannot be used for samples of shape [1, 8, 8]")
    assert "KeyError: 'rate'" in said


def test_a_model_of_a_package_becomes_an_artifact(
    example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["artifact", "build", "two-layers", "-o", str(tmp_path / "built"), "--input-shape", "2", "--classes", "3"]

    assert main([*words, "--json"]) == 0
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert [slot["shape"] for slot in slots if slot["role"] == "trainable"] == [[16, 2], [16], [3, 16], [3]]
