"""Readers of numpy and csv files; nothing here unpickles."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.device_runtime.data.labels import texts_of
from fedwright.device_runtime.data.local import Array, Raw
from fedwright.protocol.errors import DataError

_NAMES = ("x", "y", "x_holdout", "y_holdout")
# Types of the array that a table's features are collected in.
WHOLE, FRACTIONS = "q", "f"


class _Table:
    """Rows of a csv file as they are read: features of one kind, and a number for each different label."""

    def __init__(self, features: int) -> None:
        self.features = features
        self.values: array[Any] = array(WHOLE)
        self.labels = array(WHOLE)
        self.found: dict[str, int] = {}

    def add(self, cells: Sequence[str], label: str) -> None:
        """Take one row; ValueError when a feature is not a number."""
        if self.values.typecode == WHOLE:
            try:
                self.values.extend(array(WHOLE, [int(cell) for cell in cells]))
            except (ValueError, OverflowError):
                self.values = array(FRACTIONS, self.values)
        if self.values.typecode == FRACTIONS:
            self.values.extend([float(cell) for cell in cells])
        self.labels.append(self.found.setdefault(label, len(self.found)))


def from_mapping(arrays: Mapping[str, Array], *, where: str, held: Iterable[str] = ()) -> Raw:
    """x and y, with x_holdout and y_holdout together or not at all; the number of classes or their names if given.

    held: names of what else is there, for a message.
    """
    for name in ("x", "y"):
        if name not in arrays:
            there = ", ".join(sorted({*arrays, *held})) or "nothing"
            raise DataError(f"{where}: has no {name!r}; it has {there}; give samples the name x and labels the name y")
    if ("x_holdout" in arrays) != ("y_holdout" in arrays):
        raise DataError(f"{where}: has only one of x_holdout and y_holdout; give both or none")
    number, names = _classes(arrays["classes"], where=where) if "classes" in arrays else (None, ())
    return Raw(
        x=arrays["x"],
        y=arrays["y"],
        x_holdout=arrays.get("x_holdout"),
        y_holdout=arrays.get("y_holdout"),
        classes=number,
        class_names=names,
    )


def read_npz(place: str, options: dict[str, str]) -> Raw:
    """A numpy archive with x, y and optionally x_holdout, y_holdout, classes."""
    arrays, held = arrays_of(place, (*_NAMES, "classes"))
    return from_mapping(arrays, where=place, held=held)


def arrays_of(place: str, names: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    """Those of these arrays that a numpy archive has, and the names of all that it has."""
    # Not at the top: an agent that reads other sources does without the megabyte it takes.
    from zipfile import BadZipFile

    path = existing(place)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{place}: is a single array; save x and y together with numpy.savez")
            return {name: archive[name] for name in archive.files if name in names}, archive.files
    except (ValueError, OSError, EOFError, BadZipFile) as err:
        raise DataError(f"{place}: is not a readable numpy archive of plain numbers ({err})") from err


def read_npy_folder(place: str, options: dict[str, str]) -> Raw:
    """A folder with x.npy, y.npy and optionally x_holdout.npy, y_holdout.npy, classes.npy, all memory-mapped."""
    folder = existing(place)
    arrays: dict[str, Array] = {}
    for name in (*_NAMES, "classes"):
        path = folder / f"{name}.npy"
        if path.exists():
            try:
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as err:
                raise DataError(f"{path}: is not a readable numpy array of plain numbers ({err})") from err
    return from_mapping(arrays, where=place)


def read_csv(place: str, options: dict[str, str]) -> Raw:
    """A table with a header; the label, a number or a name, is the column `label` (or the one named), else the last.

    Features stay whole numbers when all of them are.
    """
    import csv

    wanted, shape = options.pop("label", None), options.pop("shape", None)
    with existing(place).open(newline="", encoding="utf-8-sig") as file:
        try:
            table = _read_rows(csv.reader(file), place, wanted)
        except (csv.Error, UnicodeDecodeError) as err:
            raise DataError(f"{place}: is not a readable csv table ({err})") from err
    dtype = np.int64 if table.values.typecode == WHOLE else np.float32
    x = np.frombuffer(table.values, dtype).reshape(len(table.labels), table.features)
    if shape is not None:
        x = x.reshape(len(table.labels), *_parse_shape(shape, table.features, where=place))
    return Raw(x, _label_array(table, where=place))


def existing(place: str) -> Path:
    """The path, if there is something there."""
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"data path {place!r} does not exist; check it, or start where it lies")
    return path


def _read_rows(reader: Iterator[list[str]], place: str, wanted: str | None) -> _Table:
    header = [name.strip() for name in next(reader, [])]
    if len(header) < 2:
        raise DataError(f"{place}: needs a header line with at least one feature and one label column")
    if wanted is not None and wanted not in header:
        raise DataError(f"{place}: has no column {wanted!r}; it has {', '.join(header[:20])}")
    name = wanted or ("label" if "label" in header else header[-1])
    label_column = header.index(name)
    table = _Table(len(header) - 1)
    for line, row in enumerate(reader, start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(f"{place} line {line}: has {len(row)} columns, the header has {len(header)}")
        label = row.pop(label_column).strip()
        if not label:
            raise DataError(f"{place} line {line}: has no label; fill the column {name!r} or drop the line")
        try:
            table.add(row, label)
        except ValueError as err:
            raise DataError(f"{place} line {line}: holds something that is not a number ({err})") from err
    return table


def _label_array(table: _Table, *, where: str) -> Array:
    """One label per row: numbers when all labels are numbers, names when none is."""
    texts = list(table.found)
    numbers = [text for text in texts if _is_number(text)]
    if numbers and len(numbers) < len(texts):
        word = next(text for text in texts if not _is_number(text))
        raise DataError(
            f"{where}: some labels are numbers ({numbers[0]}) and some are names ({word}); use one kind for all"
        )
    kinds: Array = np.array([float(text) for text in texts]) if numbers else np.array(texts, np.str_)
    return kinds[np.frombuffer(table.labels, np.int64)] if texts else np.empty(0)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_shape(text: str, features: int, *, where: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or np.prod([int(part) for part in parts]) != features:
        raise DataError(f"{where}: shape={text} does not describe the {features} feature columns")
    return [int(part) for part in parts]


def _classes(value: Array, *, where: str) -> tuple[int | None, tuple[str, ...]]:
    """How many classes there are, or what they are called."""
    if value.ndim == 1 and value.dtype.kind in "US" and len(value):
        return None, tuple(texts_of(value, where=where))
    if value.shape != () or value.dtype.kind not in "iu" or value.item() < 1:
        raise DataError(f"{where}: 'classes' must be one whole number from 1 on, or a list of names")
    return int(value), ()
