"""Data sources: what they read, and what each mistake is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.device_runtime import data
from fedwright.device_runtime.data import sources
from fedwright.device_runtime.data.local import LocalData, Raw
from fedwright.protocol.errors import DataError


def load(source: Path | str, holdout_ratio: float = 0.2, seed: int = 3) -> LocalData:
    return data.load(str(source), holdout_ratio=holdout_ratio, seed=seed)


def arrays(n: int = 10) -> dict[str, Any]:
    return {"x": np.arange(n * 2, dtype=np.float32).reshape(n, 2), "y": np.arange(n) % 3}


def test_npz_is_split_into_disjoint_parts_that_depend_on_the_seed(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays())
    one, again, other = load(tmp_path / "d.npz"), load(f"npz:{tmp_path}/d.npz"), load(tmp_path / "d.npz", seed=4)

    rows = np.concatenate([one.x, one.x_holdout])[:, 0].tolist()
    assert sorted(rows) == arrays()["x"][:, 0].tolist()
    assert (len(one.y), len(one.y_holdout)) == (8, 2)
    assert np.array_equal(one.x, again.x)
    assert not np.array_equal(one.x_holdout, other.x_holdout)
    assert (one.classes, one.input_shape, sum(one.class_counts)) == (3, (2,), 8)
    assert (one.x.dtype, one.y.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
    assert one.y.tolist() == [int(row) // 2 % 3 for row in one.x[:, 0]]


def test_npz_with_its_own_holdout_and_classes_is_taken_as_it_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays(), x_holdout=np.ones((2, 2)), y_holdout=np.array([1, 2], np.uint8), classes=7)
    found = load(tmp_path / "d.npz")
    assert (len(found.y), found.y_holdout.tolist(), found.classes) == (10, [1, 2], 7)
    assert found.class_counts == (4, 3, 3, 0, 0, 0, 0)


def test_byte_images_are_scaled_but_byte_features_are_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "i.npz", x=np.full((4, 1, 2, 2), 255, np.uint8), y=np.zeros(4, int))
    np.savez(tmp_path / "f.npz", x=np.full((4, 3), 255, np.uint8), y=np.zeros(4, int))
    assert load(tmp_path / "i.npz").x.max() == 1
    assert load(tmp_path / "f.npz").x.max() == 255


def test_npy_folder_with_holdout_stays_memory_mapped(tmp_path: Path) -> None:
    for name, array in {**arrays(), "x_holdout": np.zeros((1, 2), np.float32), "y_holdout": np.array([0])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = load(tmp_path)
    assert isinstance(found.x, np.memmap)
    assert np.array_equal(found.x, arrays()["x"])


@pytest.mark.parametrize(
    ("text", "option", "x0", "y"),
    [
        pytest.param("a,b,label\n1,2,0\n3,4,1\n", "", [1, 2], [0, 1], id="label column"),
        pytest.param("label,a,b\n0,1,2\n1,3,4\n", "", [1, 2], [0, 1], id="label first"),
        pytest.param("a,b,kind\n1,2,0\n3,4,1\n", "", [1, 2], [0, 1], id="last column"),
        pytest.param("a,kind,b\n1,0,2\n3,1,4\n\n", "?label=kind&shape=2,1", [[1], [2]], [0, 1], id="named and shaped"),
    ],
)
def test_csv(tmp_path: Path, text: str, option: str, x0: list[int | list[int]], y: list[int]) -> None:
    (tmp_path / "d.csv").write_text(text)
    found = load(f"{tmp_path}/d.csv{option}", holdout_ratio=0)
    assert found.x[0].tolist() == x0
    assert found.y.tolist() == y
    assert len(found.y_holdout) == 0


@pytest.mark.parametrize(
    ("text", "option", "message"),
    [
        pytest.param("", "", "header", id="empty file"),
        pytest.param("a,label\n", "", "empty", id="no rows"),
        pytest.param("a,label\n1,0\n2\n", "", "line 3.*1 columns", id="short row"),
        pytest.param("a,label\nx,0\n", "", "line 2.*not a number", id="text"),
        pytest.param("a,label\n1,0.5\n2,1\n", "", "not integers", id="fractional label"),
        pytest.param("a,label\nnan,0\n2,1\n", "", "NaN", id="nan"),
        pytest.param("a,label\n1,0\n2,1\n", "?label=zz", "no column 'zz'", id="no such column"),
        pytest.param("a,label\n1,0\n2,1\n", "?shape=3", "shape=3", id="wrong shape"),
        pytest.param("a,label\n1,0\n2,1\n", "?colour=red", "unknown option 'colour'", id="unknown option"),
        pytest.param("a,label\n1,0\n2,1\n", "?classes=1", "label 1 is out of range", id="too few classes"),
        pytest.param("a,label\n1,0\n2,1\n", "?classes=two", "whole number", id="classes not a number"),
    ],
)
def test_csv_mistakes(tmp_path: Path, text: str, option: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(f"csv:{tmp_path}/d.csv{option}")


def test_python_function_returns_a_pair_or_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rows.py").write_text(
        "import numpy as np\n"
        "def pair(): return np.zeros((4, 2)), np.array([0, 1, 0, 1])\n"
        "def table(): return {'x': [[1, 2], [3, 4]], 'y': [0, 1], 'classes': 5}\n"
        "def wrong(): return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(load("python:my_rows:pair").y) == 3
    assert load("python:my_rows:table").classes == 5
    with pytest.raises(DataError, match="int"):
        load("python:my_rows:wrong")
    with pytest.raises(DataError, match="module 'my_rows' has no 'none'"):
        load("python:my_rows:none")
    with pytest.raises(DataError, match="there is no module 'no_such_module_here' in this folder"):
        load("python:no_such_module_here:f")
    with pytest.raises(DataError, match="python:module:name"):
        load("python:my_rows")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "empty", id="empty"),
        pytest.param({"x": np.zeros((3, 2))}, "3 samples but 10 labels", id="lengths"),
        pytest.param({"x": np.zeros(10)}, "two dimensions", id="flat x"),
        pytest.param({"x": np.zeros((10, 0))}, "empty shape", id="no features"),
        pytest.param({"x": np.full((10, 2), "a")}, "numbers", id="text x"),
        pytest.param({"x": np.array([[0, 0]] * 7 + [[0, np.inf]] * 3)}, "infinite in sample 7", id="inf"),
        pytest.param({"y": np.arange(10) - 1}, "label -1", id="negative label"),
        pytest.param({"y": np.arange(10) + 0.5}, "not integers", id="fractional label"),
        pytest.param({"y": np.full(10, 1j)}, "not integers", id="complex label"),
        pytest.param({"y": np.zeros((10, 2), int)}, "one label per sample", id="one-hot"),
        pytest.param({"x_holdout": np.zeros((1, 2))}, "only one of", id="half a holdout"),
        pytest.param({"x_holdout": np.zeros((1, 3)), "y_holdout": np.zeros(1, int)}, "x_holdout", id="holdout shape"),
        pytest.param({"x_holdout": np.zeros((0, 2)), "y_holdout": np.zeros(0, int)}, "empty", id="empty holdout"),
        pytest.param({"classes": 2}, "label 2 is out of range", id="label over classes"),
        pytest.param({"y": np.arange(10) * 10**9}, "more than 1000000", id="labels with gaps"),
        pytest.param({"x": np.full((10, 2), 1e300)}, "infinite in sample 0", id="too large for float32"),
        pytest.param({"classes": 0.5}, "whole number", id="classes"),
    ],
)
def test_npz_mistakes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "d.npz", **{**arrays(), **changes})
    with pytest.raises(DataError, match=message):
        load(tmp_path / "d.npz")


def test_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "object.npz", x=np.array([{}, {}]), y=np.array([0, 1]))
    np.savez(tmp_path / "noy.npz", x=np.zeros((2, 2)), labels=np.zeros(2))
    (tmp_path / "table.xlsx").write_text("?")
    for name, message in [
        ("text.npz", "not a readable"),
        ("object.npz", "plain numbers"),
        ("noy.npz", "has no 'y'; it has labels, x; give samples"),
        ("missing.npz", "does not exist"),
        ("missing", "does not exist"),
        ("table.xlsx", "unknown kind"),
    ]:
        with pytest.raises(DataError, match=message):
            load(tmp_path / name)


def test_one_sample_cannot_be_held_out() -> None:
    one = Raw(np.zeros((1, 2), np.float32), np.zeros(1, np.int64))
    with pytest.raises(DataError, match="holdout would be empty"):
        sources.assemble(one, where="here", holdout_ratio=0.2, seed=0)
    assert len(sources.assemble(one, where="here", holdout_ratio=0, seed=0).y) == 1


@pytest.mark.parametrize("ratio", [-0.1, 1.0])
def test_a_ratio_outside_the_unit_interval_is_refused(ratio: float) -> None:
    with pytest.raises(DataError, match="ratio"):
        load("npz:x.npz", holdout_ratio=ratio)
