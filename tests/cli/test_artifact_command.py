"""`fedwright artifact`: build, inspect and check from the command line."""

import json
from pathlib import Path

import pytest

from fedwright.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of a narrow LeNet."""
    path = tmp_path_factory.mktemp("artifact") / "lenet"
    command = ["artifact", "build", "lenet", "-o", str(path), "--input-shape", "1,28,28", "--classes", "10"]
    assert main([*command, "--width", "0.5", "--momentum", "0.9"]) == 0
    return path


def test_build_writes_three_files(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["eval.onnx", "manifest.json", "train.onnx"]


def test_inspect_shows_what_the_graph_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "inspect", str(folder)]) == 0

    shown = capsys.readouterr().out
    assert "any x 1 x 28 x 28" in shown
    assert "head.weight" in shown
    assert "optimizer states: 8" in shown


def test_inspect_gives_the_manifest_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "inspect", str(folder), "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == json.loads((folder / "manifest.json").read_text())


def test_check_trains_a_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "check", str(folder), "--batch", "4", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["loss"] > 0
    assert result["need_bytes"] > 0


def test_a_damaged_file_is_refused_in_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "train.onnx").write_bytes((folder / "train.onnx").read_bytes()[:-1])

    assert main(["artifact", "check", str(tmp_path)]) == 1

    assert "train.onnx does not have the hash" in capsys.readouterr().err


def test_a_folder_without_artifact_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "inspect", str(tmp_path)]) == 1

    assert "is no artifact" in capsys.readouterr().err


def test_a_users_module_needs_its_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "build", "python:some_package:make", "-o", str(tmp_path)]) == 1

    assert "give --input-shape and --classes" in capsys.readouterr().err


def test_the_list_of_operators_is_that_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["artifact", "build", "--supported"])

    listed = capsys.readouterr().out.split()
    document = (Path(__file__).parents[2] / "docs" / "own-model.md").read_text(encoding="utf-8")
    written = document.split("```text\n")[1].split("```")[0].split()
    assert ended.value.code == 0
    assert written == listed
    assert {"Conv", "GRU", "LSTM"} <= set(listed)
