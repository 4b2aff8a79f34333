"""Data as programs have it, and what is said of what is no data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import fedwright as fw
from fedwright.api.data import source_of
from fedwright.device_runtime.data import LocalData, load
from fedwright.protocol.errors import DataError

X = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
Y = np.arange(12) % 3
NAMES = [("ant", "bee", "cat")[label] for label in Y]
TORCH = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
TABLE = pandas.DataFrame({"heat": X[:, 0], "label": NAMES, "load": X[:, 1]})


def read(data: object, folder: Path) -> LocalData:
    return load(source_of(data, folder), holdout_ratio=0.0, seed=0)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ((X, Y), ()),
        ([X, Y], ()),
        ((X.tolist(), Y.tolist()), ()),
        ((torch.from_numpy(X), torch.from_numpy(Y)), ()),
        (list(zip(X, Y, strict=True)), ()),
        (TORCH, ()),
        ((pandas.DataFrame(X), pandas.Series(NAMES)), ("ant", "bee", "cat")),
        (TABLE, ("ant", "bee", "cat")),
        (TABLE.astype({"label": "category"}), ("ant", "bee", "cat")),
        (TABLE[["heat", "load"]].assign(kind=Y), ()),
    ],
    ids=["pair", "list", "lists", "tensors", "items", "torch", "frames", "table", "category", "last column"],
)
def test_what_people_have_is_read_as_it_is(data: object, names: tuple[str, ...], tmp_path: Path) -> None:
    found = read(data, tmp_path)

    np.testing.assert_array_equal(found.x, X)
    np.testing.assert_array_equal(found.y, Y)
    assert found.class_names == names


def test_true_and_false_are_two_classes(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read((X, Y == 1), tmp_path).y, (Y == 1).astype(int))


def test_numbers_to_predict_stay_what_they_are(tmp_path: Path) -> None:
    found = read(fw.Dataset(X, X * 2, task="regress"), tmp_path)

    assert found.goal == "regress"
    np.testing.assert_array_equal(found.y, X * 2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fw.Dataset(X, Y[:7]), "x has 12 examples but y has 7 labels"),
        (lambda: fw.Dataset(3, Y), "x is a int and no list of examples; give fedwright.Dataset"),
        (
            lambda: fw.Dataset.of(torch.utils.data.DataLoader(TORCH)),
            "DataLoader gives batches.*its .dataset",
        ),
        (lambda: fw.Dataset.of([{"image": X[0]}]), "item 0 of the data is a dict and no pair"),
        (lambda: fw.Dataset.of([(X[0], 0), (X, 1)]), r"x of shape \[2\] and \[12, 2\]; bring all to one shape"),
        (lambda: fw.Dataset.of([]), "the data has no examples"),
        (lambda: fw.Dataset.of("digits"), "'digits' is no data"),
        (
            lambda: source_of((np.array([object()] * 12), Y), Path()),
            "x holds things that are neither numbers",
        ),
        (lambda: source_of(([[1.0], [1.0, 2.0]], [0, 1]), Path()), "x is no array"),
    ],
)
def test_what_is_no_data_is_said_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        make()


def test_labels_with_fractions_are_not_cut_to_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels are float64, not integers"):
        read([(x, 0.5 + y) for x, y in zip(X, Y, strict=True)], tmp_path)


def test_inputs_on_a_scale_that_nothing_learns_from_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="x goes from 0 to 95.8; models learn best from numbers around 1"):
        source_of((X * 100, Y), tmp_path)
