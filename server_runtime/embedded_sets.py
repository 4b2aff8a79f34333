"""Examples that come with the server's own packages: a part of a small data set that no device holds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError

# Every fifth image is held out: it tests in a benchmark, or is the server's own in a run that says so.
HOLDOUT_EVERY = 5
HOLDOUT = ":holdout"
NAMES = ("digits" + HOLDOUT,)
# Enough for methods that need examples on the server.
STARTER_PUBLIC: dict[str, Any] = {"data": NAMES[0], "rows": 100}


def check_public_source(file: str | None, data: str | None) -> None:
    """Raise ConfigError unless at most one of them is given and `data` is a set there is."""
    if data is not None and data not in NAMES:
        raise ConfigError(f"data is {data!r} but the sets without a file are {', '.join(NAMES)}; else set public.file")
    if data is not None and file is not None:
        raise ConfigError("file and data are both given; keep one of them")


def load_named(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """x and y of a set in NAMES."""
    check_public_source(None, name)
    x, y, held_out = load_digits()
    return x[held_out], y[held_out]


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """1,797 grey images x [n, 1, 8, 8] in 0 … 1, their digits y [n], and which of them are held out [n]."""
    # scikit-learn takes over a second to import, which only those who want the images should pay.
    from sklearn import datasets  # type: ignore[import-untyped]

    bunch: Any = datasets.load_digits()
    y = bunch.target.astype(np.int64)
    held_out = np.arange(len(y)) % HOLDOUT_EVERY == HOLDOUT_EVERY - 1
    return (bunch.images[:, None] / 16).astype(np.float32), y, held_out
