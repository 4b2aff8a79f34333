"""Digits: 1,797 grey 8×8 images of ten digits, embedded in scikit-learn."""

import numpy as np

from fedwright.simulation.datasets.base import DataSet, Limit

TEST_EVERY = 5


def load(limit: Limit) -> DataSet:
    """Every fifth image is for testing; pixels are scaled to 0..1."""
    # scikit-learn takes over a second to import, which a mere listing of data sets should not pay.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    x = (bunch.images[:, None] / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
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
