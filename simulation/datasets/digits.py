"""Digits: 1,797 grey 8×8 images of ten digits, embedded in scikit-learn."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from fedwright.protocol.errors import DataError
from fedwright.simulation.datasets.base import DataSet, Limit

TEST_EVERY = 5
FILE = Path("datasets", "data", "digits.csv.gz")


def load(limit: Limit) -> DataSet:
    """Every fifth image is for testing; pixels are scaled to 0..1."""
    table = _read()
    x = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    y = table[:, -1].astype(np.int64)
    test = np.arange(len(y)) % TEST_EVERY == TEST_EVERY - 1
    return DataSet(
        name="digits",
        kind="image",
        x_train=x[~test][: limit.train],
        y_train=y[~test][: limit.train],
        x_test=x[test][: limit.test],
        y_test=y[test][: limit.test],
        classes=tuple(str(digit) for digit in range(10)),
    )


def _read() -> np.ndarray:
    # The file by itself: scikit-learn takes over a second to import, and nothing of its code is needed.
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError('the digits are part of scikit-learn; install it with pip install "fedwright[server]"')
    with gzip.open(Path(found.submodule_search_locations[0]) / FILE, "rt") as file:
        return np.loadtxt(file, delimiter=",")
