"""Examples that come with the server's own packages: a part of a small data set that no device holds."""

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError, DataError

# Every fifth image is held out: it tests in a benchmark, or is the server's own in a run that says so.
HOLDOUT_EVERY = 5
HOLDOUT = ":holdout"
DIGITS = Path("datasets", "data", "digits.csv.gz")
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
    # The file by itself: scikit-learn takes over a second to import, and nothing of its code is needed.
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError('the digits are part of scikit-learn; install it with pip install "fedwright[server]"')
    with gzip.open(Path(found.submodule_search_locations[0]) / DIGITS, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    x = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    held_out = np.arange(len(table)) % HOLDOUT_EVERY == HOLDOUT_EVERY - 1
    return x, table[:, -1].astype(np.int64), held_out
