"""Data as a program has it: arrays, a torch data set, a file, a folder or a name, as a source that a run reads."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedwright.protocol.errors import DataError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples and their labels; classes: their names, if they have any.

    x [n, ...]; y [n] whole numbers from 0 on, or what the run's task needs: numbers [n, targets], masks [n, places...].
    """

    x: ArrayLike
    y: ArrayLike
    classes: Sequence[str] = ()

    def __len__(self) -> int:
        """How many examples there are."""
        return len(np.asarray(self.y))

    @classmethod
    def of(cls, data: object) -> "Dataset":
        """A pair (x, y), or anything with `len` whose items are such pairs, as torch has it."""
        if isinstance(data, Dataset):
            return data
        if isinstance(data, tuple) and len(data) == 2:
            return cls(*data)
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise DataError(
                f"a {type(data).__name__} is no data; give fedwright.Dataset(x, y), a torch Dataset, a path, a source "
                "such as npz:file.npz, or a name from `fedwright datasets`"
            )
        pairs = [data[row] for row in range(len(data))]
        names = getattr(data, "classes", ())
        return cls(
            np.stack([np.asarray(x) for x, _ in pairs]), np.stack([np.asarray(y) for _, y in pairs]), tuple(names)
        )


def source_of(data: object, folder: Path) -> str:
    """A source that devices read; arrays are written into a folder below `folder` once, called by their content."""
    if isinstance(data, Path):
        return str(data)
    if isinstance(data, str):
        return data
    given = Dataset.of(data)
    arrays = {"x": np.asarray(given.x), "y": np.asarray(given.y)}
    if given.classes:
        arrays["classes"] = np.array(list(given.classes))
    place = folder / _digest(arrays)
    if not place.exists():
        _write(arrays, place)
    return f"npy:{place}"


def _digest(arrays: dict[str, Array]) -> str:
    content = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        content.update(f"{name} {array.dtype.str} {array.shape}".encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()[:16]


def _write(arrays: dict[str, Array], place: Path) -> None:
    """All files or none: a folder that is there is whole."""
    unfinished = place.with_name(f"{place.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(unfinished / f"{name}.npy", array)
    unfinished.replace(place)
