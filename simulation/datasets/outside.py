"""Data sets from outside: what a function `load(limit, progress)` returns, checked before anybody uses it."""

from dataclasses import replace

import numpy as np

from fedwright.protocol.errors import DataError
from fedwright.protocol.support.plugins import Plugin
from fedwright.simulation.datasets.base import Array, DataSet, Limit
from fedwright.simulation.datasets.files import Progress


def load_outside(plugin: Plugin, limit: Limit, progress: Progress | None) -> DataSet:
    """The data set that a user's function returns, cut to the limit where the function did not."""
    function = plugin.load()
    if not callable(function):
        raise plugin.problem(f"it is a {type(function).__name__}; it must be a function of limit and progress")
    found = function(limit, progress)
    if not isinstance(found, DataSet):
        raise DataError(
            f"data set {plugin.name!r} returned a {type(found).__name__}; it must return a "
            "fedwright.simulation.datasets.DataSet"
        )
    where = f"data set {plugin.name!r}"
    x, y, owner = _part(found, "train", limit.train, where=where)
    x_test, y_test, owner_test = _part(found, "test", limit.test, where=where)
    return replace(found, x_train=x, y_train=y, owner_train=owner, x_test=x_test, y_test=y_test, owner_test=owner_test)


def _part(data: DataSet, part: str, most: int | None, *, where: str) -> tuple[Array, Array, Array | None]:
    """Examples, labels and owners of a part, checked; not more of them than wanted, nor more precise than a model."""
    x, y, owner = (getattr(data, f"{name}_{part}") for name in ("x", "y", "owner"))
    x, y, owner = np.asarray(x), np.asarray(y), None if owner is None else np.asarray(owner)
    if x.ndim < 2 or y.ndim != 1 or y.dtype.kind not in "iu" or len(x) != len(y):
        raise DataError(
            f"{where}: x_{part} has shape {list(x.shape)} and y_{part} {list(y.shape)} of type {y.dtype}; give one "
            "whole number for each example"
        )
    if x.dtype.kind not in "fiu" or (x.dtype.kind == "f" and not np.isfinite(x).all()):
        raise DataError(f"{where}: x_{part} is not all finite numbers ({x.dtype}); leave such examples out")
    if x.shape[1:] != data.input_shape:
        raise DataError(f"{where}: examples of x_{part} have shape {list(x.shape[1:])}, not {list(data.input_shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(data.classes):
        raise DataError(f"{where}: y_{part} has labels outside 0 … {len(data.classes) - 1}; name all of its classes")
    if owner is not None and owner.shape != y.shape:
        raise DataError(f"{where}: owner_{part} has shape {list(owner.shape)}; give one owner for each example")
    x = x.astype(np.float32, copy=False) if x.dtype.kind == "f" else x
    return x[:most], y[:most], None if owner is None else owner[:most]
