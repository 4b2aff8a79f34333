"""Digits: 1,797 grey 8×8 images of ten digits, embedded in scikit-learn."""

from fedwright.server_runtime.public_data.embedded_sets import load_digits
from fedwright.simulation.datasets.base import DataSet, Limit


def load(limit: Limit) -> DataSet:
    """Every fifth image is for testing; pixels are scaled to 0..1."""
    x, y, test = load_digits()
    return DataSet(
        name="digits",
        kind="image",
        x_train=x[~test][: limit.train],
        y_train=y[~test][: limit.train],
        x_test=x[test][: limit.test],
        y_test=y[test][: limit.test],
        classes=tuple(str(digit) for digit in range(10)),
    )
