"""Data sources from outside: schemes that installed packages read, and functions in the current folder."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime.data import LocalData, load
from fedwright.device_runtime.data.sources import absolute
from fedwright.protocol.errors import DataError
from helpers.outside_package import example, install, installed
from helpers.tools import run

__all__ = ["example", "installed"]

ROWS = "import numpy as np\ndef rows(): return np.zeros((10, 2)), np.arange(10) % 2\n"


def read(source: str) -> LocalData:
    return load(source, holdout_ratio=0.2, seed=3)


def test_a_scheme_of_a_package_is_read_with_its_options(example: Path) -> None:
    found = read("counter:40?labels=4")

    assert (len(found.y), len(found.y_holdout), found.classes, found.input_shape) == (32, 8, 4, (2,))
    assert read("counter:40").classes == 2
    assert read("counter:40?classes=9").classes == 9


def test_an_option_that_the_reader_does_not_know_is_named(example: Path) -> None:
    with pytest.raises(DataError, match="'counter:40\\?label=4' has an unknown option 'label'"):
        read("counter:40?label=4")


def test_an_unknown_scheme_is_told_those_of_packages_too(example: Path) -> None:
    with pytest.raises(DataError, match="'count:40' does not exist; give a path or one of counter, csv, graph, images"):
        read("count:40")


def test_a_reader_may_return_a_dictionary_and_nothing_else(installed: Path) -> None:
    text = (
        "def table(place, options): return {'x': [[1, 2], [3, 4]], 'y': [0, 1], 'classes': 5}\n"
        "def wrong(place, options): return place\n"
        "number = 3\n"
    )
    points = {"table": "readers:table", "wrong": "readers:wrong", "number": "readers:number"}
    install(installed, "readers", {"fedwright.sources": points}, {"readers.py": text})

    assert load("table:here", holdout_ratio=0.0, seed=1).classes == 5
    with pytest.raises(DataError, match=r"^wrong:here must return \(x, y\) or a dict with x and y, not str$"):
        read("wrong:here")
    with pytest.raises(DataError, match=r"^data source 'number' of the package readers: it is a int; it must be a fu"):
        read("number:here")


def test_a_scheme_of_ours_is_not_given_away(installed: Path, tmp_path: Path) -> None:
    install(installed, "greedy", {"fedwright.sources": {"npz": "greedy:read"}}, {})
    np.savez(tmp_path / "d.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2)

    assert len(read(f"npz:{tmp_path}/d.npz").y) == 8


def test_a_place_that_is_a_file_stays_that_file_in_another_folder(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.db").touch()

    assert absolute("counter:rows.db?labels=2") == f"counter:{tmp_path}/rows.db?labels=2"
    assert absolute("counter:40?labels=2") == "counter:40?labels=2"


def test_the_installed_command_finds_a_function_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "my_rows.py").write_text(ROWS)
    script = Path(sys.executable).with_name("fedwright")
    words = ["device", "doctor", "--data", "python:my_rows:rows", "--json"]

    said = run(["env", "-C", str(tmp_path), str(script), *words], env={**os.environ, "PYTHONPATH": ""})

    assert "data python:my_rows:rows: 8 samples of 2, 2 held out, 2 classes" in said
