"""Classes with names from every source, whole numbers that stay whole, and labels in a run's numbering."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.device_runtime import data
from fedwright.device_runtime.data.local import LocalData
from fedwright.protocol.errors import DataError
from helpers.image_folders import write_folder

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def load(source: Path | str, holdout_ratio: float = 0.0) -> LocalData:
    return data.load(str(source), holdout_ratio=holdout_ratio, seed=0)


def test_names_of_image_folders(tmp_path: Path) -> None:
    found = load(write_folder(tmp_path, {"fox": 2, "cat": 3}))
    assert (found.class_names, found.class_counts) == (("cat", "fox"), (3, 2))
    assert found.summary().class_names == ["cat", "fox"]


def test_numbered_folders_have_no_names(tmp_path: Path) -> None:
    assert load(write_folder(tmp_path, {"0": 2, "3": 3})).summary().class_names is None


def test_a_class_list_gives_the_names(tmp_path: Path) -> None:
    write_folder(tmp_path, {"fox": 2})
    (tmp_path / "classes.txt").write_text("ant\nfox\n")
    found = load(tmp_path)
    assert (found.class_names, found.y.tolist()) == (("ant", "fox"), [1, 1])


def test_text_labels_of_a_table_are_names(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,label\n1,fox\n2,cat\n3, fox \n")
    found = load(tmp_path / "d.csv")
    assert (found.class_names, found.y.tolist()) == (("cat", "fox"), [1, 0, 1])


@pytest.mark.parametrize(
    ("changes", "names", "y"),
    [
        pytest.param({"y": [1, 0, 1, 1], "classes": ["fox", "cat"]}, ("fox", "cat"), [1, 0, 1, 1], id="listed"),
        pytest.param({"y": ["fox", "cat", "fox", "ant"]}, ("ant", "cat", "fox"), [2, 1, 2, 0], id="text"),
        pytest.param({"y": np.array([b"b", b"a", b"b", b"b"])}, ("a", "b"), [1, 0, 1, 1], id="bytes"),
        pytest.param(
            {"y": ["fox", "cat", "fox", "cat"], "classes": ["fox", "ant", "cat"]},
            ("fox", "ant", "cat"),
            [0, 2, 0, 2],
            id="text and list",
        ),
        pytest.param({"y": [1, 0, 1, 1], "classes": 5}, (), [1, 0, 1, 1], id="number"),
    ],
)
def test_names_of_arrays(tmp_path: Path, changes: dict[str, Any], names: tuple[str, ...], y: list[int]) -> None:
    np.savez(tmp_path / "d.npz", x=X, **changes)
    for name, array in {"x": X, **changes}.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(array))
    for source in (tmp_path / "d.npz", f"npy:{tmp_path}"):
        found = load(source)
        assert (found.class_names, found.y.tolist()) == (names, y)


def test_a_holdout_part_is_numbered_alike(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=["b", "b", "c", "c"], x_holdout=X[:1], y_holdout=["a"])
    found = load(tmp_path / "d.npz")
    assert (found.class_names, found.y.tolist(), found.y_holdout.tolist()) == (("a", "b", "c"), [1, 1, 2, 2], [0])


@pytest.mark.parametrize(
    ("changes", "option", "message"),
    [
        pytest.param({"y": ["a", "b", "a", "b"], "classes": ["a"]}, "", "label 'b' is not in its list", id="unlisted"),
        pytest.param({"y": [0, 1, 2, 0], "classes": ["a", "b"]}, "", "label 2 is out of range", id="beyond names"),
        pytest.param({"y": [0, 1, 1, 0], "classes": ["a", "a"]}, "", "'a' is there twice", id="twice"),
        pytest.param({"y": [0, 1, 1, 0], "classes": ["a", "b"]}, "?classes=3", "leave .classes=3 out", id="both"),
        pytest.param({"y": ["a"] * 4, "x_holdout": X, "y_holdout": [0] * 4}, "", "only one of y and", id="half named"),
        pytest.param({"y": np.array([b"\xff"] * 4)}, "", "not UTF-8", id="no text"),
        pytest.param({"y": [0, 1, 1, 0], "classes": [["a", "b"]]}, "", "or a list of names", id="table of names"),
    ],
)
def test_mistakes_in_names(tmp_path: Path, changes: dict[str, Any], option: str, message: str) -> None:
    np.savez(tmp_path / "d.npz", x=X, **changes)
    with pytest.raises(DataError, match=message):
        load(f"npz:{tmp_path}/d.npz{option}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a,label\n1,0\n2,cat\n", r"some labels are numbers \(0\) and some are names \(cat\)", id="mixed"),
        pytest.param("a,label\n1,cat\n2,\n", "line 3: has no label", id="empty"),
    ],
)
def test_mistakes_in_labels_of_a_table(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "d.csv")


def test_labels_in_the_numbering_of_a_run() -> None:
    own = load_named(("cat", "fox"), [0, 1, 1, 0], holdout=[1])
    run = own.numbered_as(["ant", "fox", "gnu", "cat"])
    assert (run.y.tolist(), run.y_holdout.tolist(), run.classes) == ([3, 1, 1, 3], [1], 4)
    assert run.class_counts == (0, 2, 0, 2)
    assert run.numbered_as(["ant", "fox", "gnu", "cat"]) is run
    with pytest.raises(DataError, match="class 'fox' is none of the run's classes"):
        own.numbered_as(["cat", "dog"])
    with pytest.raises(DataError, match="did not say which classes the run has; update the server"):
        own.numbered_as([])


def test_plain_numbers_are_places() -> None:
    own = load_named((), [0, 1, 1, 0], holdout=[1])
    assert own.numbered_as(["ant", "fox", "gnu"]) is own


def load_named(names: tuple[str, ...], y: list[int], *, holdout: list[int]) -> LocalData:
    labels, out = np.array(y), np.array(holdout)
    counts = tuple(np.bincount(labels, minlength=2).tolist())
    return data.LocalData(X, labels, X[: len(out)], out, 2, counts, (2,), class_names=names)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "uint8"])
def test_whole_numbers_stay_whole(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(8).reshape(4, 2).astype(dtype), y=[0, 1, 0, 1])
    found = load(tmp_path / "d.npz")
    assert found.x.dtype == dtype
    assert found.summary().input_dtype == dtype


def test_whole_numbers_of_a_folder_stay_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(8).reshape(4, 2))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, 1]))
    assert isinstance(load(tmp_path).x, np.memmap)


@pytest.mark.parametrize(
    ("cells", "dtype", "values"),
    [
        pytest.param("1,20000001,0\n3,4,1", np.int64, [1, 20000001], id="whole"),
        pytest.param("1,2,0\n3,4.5,1", np.float32, [1, 2], id="a fraction later"),
        pytest.param("1,99999999999999999999,0\n3,4,1", np.float32, [1, 1e20], id="beyond 64 bits"),
        pytest.param("1,2.0,0\n3,4,1", np.float32, [1, 2], id="a point"),
    ],
)
def test_a_table_of_whole_numbers_stays_whole(
    tmp_path: Path, cells: str, dtype: type[np.float32 | np.int64], values: list[float]
) -> None:
    (tmp_path / "d.csv").write_text(f"a,b,label\n{cells}\n")
    found = load(tmp_path / "d.csv")
    assert found.x.dtype == dtype
    np.testing.assert_allclose(found.x[0], values)


def test_fractions_in_one_part_make_both_fractions(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((4, 2), int), y=[0, 1, 0, 1], x_holdout=X[:1], y_holdout=[0])
    found = load(tmp_path / "d.npz")
    assert (found.x.dtype, found.x_holdout.dtype) == (np.dtype(np.float32), np.dtype(np.float32))


def test_words_are_counted_in_texts_and_classes_in_labels() -> None:
    """A classifier of text keeps the counts of its classes 0 and 1; its labels are no words."""
    words = np.array([[2, 3], [3, 4], [2, 2], [4, 1]])
    labels = np.array([0, 0, 1, 4])
    own = data.LocalData(words, labels, words[:1], labels[:1], 5, (2, 1, 0, 0, 1), (2,))
    assert own.summary().class_counts == [2, 1, 0, 0, 1]
    assert own.summary().score_counts == [0, 0, 3, 2, 2]
    assert replace(own, class_names=("a", "b", "c", "d", "e")).summary().score_counts == [0, 0, 3, 2, 2]
    assert replace(own, x=words.astype(np.float32)).summary().score_counts is None
