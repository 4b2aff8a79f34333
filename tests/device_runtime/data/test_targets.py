"""Labels that are no single class, and windows of series and text."""

from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime.data.sources import load
from fedwright.protocol.errors import DataError

SERIES = "load,wind\n" + "\n".join(f"{n},{-n}" for n in range(30))


def _npz(folder: Path, y: np.ndarray) -> str:
    np.savez(folder / "d.npz", x=np.zeros((len(y), 2), np.float32), y=y)
    return f"npz:{folder / 'd.npz'}"


def test_columns_of_a_table_to_predict(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,heat,b,light\n1,2,3,4\n5,6,7,8\n")

    found = load(f"csv:{tmp_path / 't.csv'}?targets=light,heat", holdout_ratio=0.0, seed=0)

    assert found.goal == found.summary().goal == "regress"
    np.testing.assert_array_equal(found.x, [[1, 3], [5, 7]])
    np.testing.assert_array_equal(found.y, [[4, 2], [8, 6]])
    assert (found.classes, found.class_counts) == (2, (2, 2))


def test_windows_of_a_series_hold_out_its_end(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(SERIES)

    found = load(f"csv:{tmp_path / 's.csv'}?targets=load&window=4&horizon=2", holdout_ratio=0.2, seed=0)

    # 25 windows, of which the last 5 are held out and the 5 before them share rows with those
    assert found.goal == "forecast"
    assert found.x.shape == (15, 4, 2)
    np.testing.assert_array_equal(found.y[0], [4, 5])
    np.testing.assert_array_equal(found.y_holdout[:, 0], [24, 25, 26, 27, 28])
    assert found.x[..., 0].max() < found.x_holdout[..., 0].min()
    assert found.y.max() < found.x_holdout[..., 0].min()


def test_text_is_bytes_and_the_next_ones(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abcdefghi")

    found = load(f"text:{tmp_path / 't.txt'}?window=4", holdout_ratio=0.0, seed=0)

    assert (found.goal, found.classes) == ("language", 256)
    assert bytes(found.x[1].astype(np.uint8)) == b"efgh"
    assert bytes(found.y[1].astype(np.uint8)) == b"fghi"


def test_masks_have_a_class_at_every_place(tmp_path: Path) -> None:
    found = load(_npz(tmp_path, np.array([[[0, 1], [1, 2]]] * 3)) + "?task=segment", holdout_ratio=0.0, seed=0)

    assert (found.classes, found.class_counts) == (3, (3, 6, 3))


BAD = {
    "unknown task": (np.zeros(3), "?task=dream", "task 'dream' is not known; choose one of classify"),
    "one class": (np.zeros(3, int), "?task=segment", "give whole numbers of shape"),
    "fractions": (np.zeros((3, 2)), "?task=language", "give whole numbers of shape"),
    "cube": (np.zeros((3, 2, 2)), "?task=regress", r"give numbers of shape \[samples\]"),
    "not a number": (np.array([0, np.nan, 1]), "?task=regress", "NaN or infinite in sample 1"),
    "other than 0 and 1": (np.array([[0, 2]]), "?task=multilabel", "one column of 0 and 1 per class"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_labels_are_named(tmp_path: Path, case: str) -> None:
    y, option, message = BAD[case]
    with pytest.raises(DataError, match=message):
        load(_npz(tmp_path, y) + option, holdout_ratio=0.0, seed=0)


BAD_SERIES = {
    "no such column": ("?targets=rain", "has no column 'rain'"),
    "all columns": ("?targets=load,wind", "all columns are targets"),
    "no horizon": ("?targets=load&window=4", "horizon is missing; give it as a whole number from 1 on"),
    "too long": ("?targets=load&window=40&horizon=2", "30 rows are too few"),
}


@pytest.mark.parametrize("case", BAD_SERIES)
def test_bad_series_are_named(tmp_path: Path, case: str) -> None:
    option, message = BAD_SERIES[case]
    (tmp_path / "s.csv").write_text(SERIES)
    with pytest.raises(DataError, match=message):
        load(f"csv:{tmp_path / 's.csv'}{option}", holdout_ratio=0.2, seed=0)


def test_text_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abc")
    with pytest.raises(DataError, match="3 bytes are too few for two windows of 4"):
        load(f"text:{tmp_path / 't.txt'}?window=4", holdout_ratio=0.0, seed=0)
