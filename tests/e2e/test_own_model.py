"""A model in the current folder: what docs/own-model.md shows works word for word, for the installed command too."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.spec import ModelSpec
from helpers.simulation import make_config
from helpers.tools import REPO, run

TEXT = (REPO / "docs" / "own-model.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXT, flags=re.DOTALL))
LEVELS = {"levels": {"sizes": [1.0, 0.5]}}
# Which method each file of the document is about.
RUNS: dict[str, tuple[str, dict[str, Any], int]] = {
    "my_model": ("heterofl", LEVELS, 0),
    "my_gated": ("fedrolex", LEVELS, 1),
    "my_adapters": ("hyperflora", {"pretrain_rounds": 1, "exchanges": 1}, 0),
}


def test_every_file_of_the_document_is_run() -> None:
    assert FILES.keys() == RUNS.keys()


@pytest.mark.parametrize("name", RUNS)
def test_a_file_of_the_document_trains_where_the_command_is_run(name: str, tmp_path: Path) -> None:
    method, params, processes = RUNS[name]
    (tmp_path / f"{name}.py").write_text(FILES[name])
    _, text = make_config(
        tmp_path / "runs",
        model={"model": f"python:{name}:make"},
        method={"name": method, **params},
        processes=processes,
    )
    (tmp_path / "run.toml").write_text(text)
    script = Path(sys.executable).with_name("fedwright")

    # The installed script has its own folder at the head of the path, not this one.
    run([str(script), "simulate", "run.toml", "--json", "result.json"], cwd=tmp_path)

    result = json.loads((tmp_path / "result.json").read_text())
    assert result["rounds"] == 2
    assert len(result["devices"]) == 4


def test_the_declared_groups_of_the_document_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_gated.py").write_text(FILES["my_gated"])
    monkeypatch.syspath_prepend(tmp_path)
    spec = ModelSpec("python:my_gated:make", (1, 8, 8), 10)

    half: Any = zoo.create(zoo.scaled(spec, 0.5), seed=1)

    assert zoo.full_sizes(spec) == {"hidden": 24}
    assert half.both.weight.shape == (24, 64)


def test_the_table_names_every_method() -> None:
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`([\w-]+)`", row)}

    assert named == METHODS.keys()


def test_a_model_that_is_not_here_is_refused_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The folder that was looked in is one of Python's own from then on.
    monkeypatch.setattr(sys, "path", [*sys.path])

    with pytest.raises(Exception, match=re.escape(f"in this folder, {tmp_path}, nor is it installed")):
        zoo.create(ModelSpec("python:no_such_module_here:make", (1, 8, 8), 10), seed=1)
