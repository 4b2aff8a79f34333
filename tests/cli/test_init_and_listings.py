"""`init` writes what `validate` accepts, for every method; the lists have a line for each thing."""

import json
from pathlib import Path

import pytest

from fedwright.cli.listings import LISTS
from fedwright.cli.main import main
from fedwright.server_runtime.edge.config import edge_from_dict, load_edge
from fedwright.server_runtime.methods.registry import METHODS


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_starter_config_of_every_method_is_good(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", method]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "run.toml"
    path.write_text(text)

    assert main(["validate", str(path)]) == 0
    assert f"is good: {method} on " in capsys.readouterr().out
    assert "fedwright server run run.toml" in text
    assert "fedwright device run --broker" in text


def test_init_of_an_unknown_method_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "fedavgg"]) == 1
    assert "did you mean 'fedavg'?" in capsys.readouterr().err


def test_validate_of_a_bad_config_fails_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[method]\nname = "fedavg"\n[run]\nround = 3\n')

    assert main(["validate", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fedwright: run.toml [run] has the unknown key 'round'")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_one_line_each_and_the_same_as_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main([name, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)

    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]
    assert all(row["summary"] for row in rows)
    assert rows


def test_data_sets_say_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDWRIGHT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "medium_titles.csv").write_text("title,publication\n")

    assert main(["datasets"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["digits"].endswith("[embedded]")
    assert lines["medium-titles"].endswith(f"[{tmp_path}]")
    assert lines["mnist"].endswith("[is downloaded when it is used]")
    assert lines["cora"].endswith("[not here; put its file where FEDWRIGHT_DATA says]")


def test_the_starter_config_of_an_edge_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "edge"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "edge.toml").write_text(text)

    config = load_edge(tmp_path / "edge.toml")

    assert config.edge.name == "edge-1"
    assert config == edge_from_dict({"edge": {"name": "edge-1"}}, where="test")
    assert "clusters and the exchange are off until" in text


def test_the_starter_config_says_the_defaults_of_the_method_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "feddropout"]) == 0
    text = capsys.readouterr().out

    # Other methods with sizes have other defaults.
    assert "sizes = [0.75] " in text
    assert "momentum = 0.9 " in text
