"""Data as a program has it, arrays, tables, a torch data set, a path or a name, as a source that a run reads."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedwright.protocol.errors import DataError
from fedwright.protocol.goals import CLASSIFY, find_goal
from fedwright.protocol.topics import check_name

Array = NDArray[Any]
# The column of a table that holds the labels, as in csv: files; without one it is the last.
LABEL = "label"
# Inputs that vary by more are warned of, as so many rows show it.
LARGE, LOOKED_AT = 4.0, 1000
WHAT_IS_DATA = (
    "give fedwright.Dataset(x, y), a pair (x, y), a table, a torch Dataset, a path, a source such as npz:file.npz, "
    "or a name from `fedwright datasets`"
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples and their labels: x [n, ...], y [n], whole numbers from 0 on or names.

    classes: what the numbers are called, if they have names. task: what the labels are for, as `[model] task` says it;
    for others than classes y has the form that the task asks for (docs/how-to/tasks.md).
    """

    x: ArrayLike
    y: ArrayLike
    classes: Sequence[str] = ()
    task: str = CLASSIFY

    def __post_init__(self) -> None:
        find_goal(self.task)
        rows, labels = _rows(self.x, "x"), _rows(self.y, "y")
        if rows != labels:
            raise DataError(f"x has {rows} examples but y has {labels} labels; give one for each")

    def __len__(self) -> int:
        """How many examples there are."""
        return _rows(self.y, "y")

    @classmethod
    def of(cls, data: Any) -> "Dataset":
        """A pair (x, y), a table with a column `label`, or what has `len` and items that are pairs, as torch has it."""
        if isinstance(data, Dataset):
            return data
        if isinstance(data, tuple) and len(data) == 2:
            return cls(*data)
        if isinstance(data, list) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
            return cls(*data)
        if hasattr(data, "columns") and hasattr(data, "drop"):
            label = LABEL if LABEL in data.columns else data.columns[-1]
            return cls(data.drop(columns=label).to_numpy(), data[label].to_numpy())
        if hasattr(data, "dataset") and hasattr(data, "batch_size"):
            raise DataError(f"a {type(data).__name__} gives batches, not examples; give its .dataset")
        if isinstance(data, str | bytes) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise DataError(f"{data!r:.60} is no data; {WHAT_IS_DATA}")
        return _gathered(data)


def _gathered(data: Any) -> Dataset:
    """The items of a data set, one after the other."""
    pairs = [_pair(data[row], row) for row in range(len(data))]
    if not pairs:
        raise DataError("the data has no examples; give at least one")
    x, y = (_stacked([np.asarray(pair[at]) for pair in pairs], name) for at, name in enumerate(("x", "y")))
    return Dataset(x, y, tuple(getattr(data, "classes", ())))


def _pair(item: Any, row: int) -> Any:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            f"item {row} of the data is a {type(item).__name__} and no pair (x, y); give fedwright.Dataset(x, y)"
        )
    return item


def _stacked(items: list[Array], name: str) -> Array:
    shapes = {item.shape for item in items}
    if len(shapes) > 1:
        first, other = sorted(shapes)[:2]
        raise DataError(f"examples have {name} of shape {list(first)} and {list(other)}; bring all to one shape")
    return np.stack(items)


def _rows(values: ArrayLike, name: str) -> int:
    try:
        return len(values)  # type: ignore[arg-type]
    except TypeError as err:
        raise DataError(f"{name} is a {type(values).__name__} and no list of examples; {WHAT_IS_DATA}") from err


def _plain(values: ArrayLike, name: str) -> Array:
    """As an array of numbers or of texts, which devices read; a file of anything else would hold code."""
    if hasattr(values, "detach"):
        # A tensor of torch, perhaps with a gradient, perhaps on another device.
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as err:
        raise DataError(f"{name} is no array: {err}") from err
    if array.dtype != object:
        return array
    if all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    try:
        return array.astype(np.float32)
    except (TypeError, ValueError) as err:
        raise DataError(f"{name} holds things that are neither numbers nor texts ({err}); convert them first") from err


def source_of(data: object, folder: Path) -> str:
    """A source that devices read; arrays are written into a folder below `folder` once, called by their content."""
    if isinstance(data, Path):
        return str(data)
    if isinstance(data, str):
        return data
    given = Dataset.of(data)
    arrays = _arrays(given)
    place = folder / _digest(arrays)
    if not place.exists():
        _write(arrays, place)
    return f"npy:{place}" + ("" if given.task == CLASSIFY else f"?task={given.task}")


def sources_of(devices: Mapping[str, object], folder: Path) -> str:
    """A source with the data of each device by its name, written once, called by its content."""
    arrays = {check_name(name, what="the name of a device"): _arrays(Dataset.of(own)) for name, own in devices.items()}
    if not arrays:
        raise DataError("the data names no device; give {'device-1': (x, y)} and so on")
    place = folder / _digest({f"{name}/{key}": array for name, own in arrays.items() for key, array in own.items()})
    if not place.exists():
        unfinished = place.with_name(f"{place.name}.part")
        unfinished.mkdir(parents=True, exist_ok=True)
        for name, own in arrays.items():
            np.savez(unfinished / f"{name}.npz", **own)
        unfinished.replace(place)
    return f"devices:{place}"


def _arrays(data: Dataset) -> dict[str, Any]:
    """What a file of this data holds."""
    arrays = {"x": _plain(data.x, "x"), "y": _plain(data.y, "y")}
    if arrays["y"].dtype == bool:
        arrays["y"] = arrays["y"].astype(np.int64)
    _warn_of_scale(arrays["x"])
    return arrays | ({"classes": np.array(list(data.classes))} if data.classes else {})


def _warn_of_scale(x: Array) -> None:
    """With inputs far from 1 a usual learning rate overshoots, and a fleet ends at chance without a word."""
    some = x[:: max(1, len(x) // LOOKED_AT)]
    if x.dtype.kind == "f" and some.size and np.std(some) > LARGE:
        warn(
            f"x goes from {some.min():.3g} to {some.max():.3g}; models learn best from numbers around 1, so scale it, "
            "such as (x - x.mean()) / x.std()",
            UserWarning,
            stacklevel=5,
        )


def _digest(arrays: dict[str, Array]) -> str:
    content = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        content.update(f"{name} {array.dtype.str} {array.shape}".encode())
        # As bytes, because texts have no memory view.
        content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()[:16]


def _write(arrays: dict[str, Array], place: Path) -> None:
    """All files or none: a folder that is there is whole."""
    unfinished = place.with_name(f"{place.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
    unfinished.replace(place)
