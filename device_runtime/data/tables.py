"""Readers of numpy and csv files; nothing here unpickles."""

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedwright.device_runtime.data.local import Array, Raw
from fedwright.protocol.errors import DataError

_NAMES = ("x", "y", "x_holdout", "y_holdout")


def from_mapping(arrays: Mapping[str, Array], *, where: str) -> Raw:
    """x and y, with x_holdout and y_holdout together or not at all, and the number of classes if given."""
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{where}: has no {name!r}; it has {', '.join(sorted(arrays)) or 'nothing'}")
    if ("x_holdout" in arrays) != ("y_holdout" in arrays):
        raise DataError(f"{where}: has only one of x_holdout and y_holdout; give both or none")
    return Raw(
        x=arrays["x"],
        y=arrays["y"],
        x_holdout=arrays.get("x_holdout"),
        y_holdout=arrays.get("y_holdout"),
        classes=_class_number(arrays["classes"], where=where) if "classes" in arrays else None,
    )


def read_npz(place: str, options: dict[str, str]) -> Raw:
    """A numpy archive with x, y and optionally x_holdout, y_holdout, classes."""
    # Not at the top: an agent that reads other sources does without the megabyte it takes.
    from zipfile import BadZipFile

    path = existing(place)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{place}: is a single array; save x and y together with numpy.savez")
            arrays = {name: archive[name] for name in archive.files if name in (*_NAMES, "classes")}
    except (ValueError, OSError, EOFError, BadZipFile) as err:
        raise DataError(f"{place}: is not a readable numpy archive of plain numbers ({err})") from err
    return from_mapping(arrays, where=place)


def read_npy_folder(place: str, options: dict[str, str]) -> Raw:
    """A folder with x.npy, y.npy and optionally x_holdout.npy, y_holdout.npy, all memory-mapped."""
    folder = existing(place)
    arrays: dict[str, Array] = {}
    for name in _NAMES:
        path = folder / f"{name}.npy"
        if path.exists():
            try:
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as err:
                raise DataError(f"{path}: is not a readable numpy array of plain numbers ({err})") from err
    return from_mapping(arrays, where=place)


def read_csv(place: str, options: dict[str, str]) -> Raw:
    """A table with a header; the label is the column `label` (or the one named), else the last one."""
    import csv

    wanted, shape = options.pop("label", None), options.pop("shape", None)
    with existing(place).open(newline="", encoding="utf-8-sig") as file:
        try:
            header, values, labels = _read_rows(csv.reader(file), place, wanted)
        except (csv.Error, UnicodeDecodeError) as err:
            raise DataError(f"{place}: is not a readable csv table ({err})") from err
    x = np.frombuffer(values, np.float32).reshape(len(labels), len(header) - 1)
    if shape is not None:
        x = x.reshape(len(labels), *_parse_shape(shape, len(header) - 1, where=place))
    return Raw(x, np.array(labels))


def existing(place: str) -> Path:
    """The path, if there is something there."""
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"data path {place!r} does not exist; check the path after --data")
    return path


def _read_rows(
    reader: Iterator[list[str]], place: str, wanted: str | None
) -> "tuple[list[str], array[float], array[float]]":
    header = [name.strip() for name in next(reader, [])]
    if len(header) < 2:
        raise DataError(f"{place}: needs a header line with at least one feature and one label column")
    if wanted is not None and wanted not in header:
        raise DataError(f"{place}: has no column {wanted!r}; it has {', '.join(header[:20])}")
    name = wanted or ("label" if "label" in header else header[-1])
    label_column = header.index(name)
    values, labels = array("f"), array("d")
    for line, row in enumerate(reader, start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(f"{place} line {line}: has {len(row)} columns, the header has {len(header)}")
        try:
            numbers = [float(cell) for cell in row]
        except ValueError as err:
            raise DataError(f"{place} line {line}: holds something that is not a number ({err})") from err
        labels.append(numbers.pop(label_column))
        values.extend(numbers)
    return header, values, labels


def _parse_shape(text: str, features: int, *, where: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or np.prod([int(part) for part in parts]) != features:
        raise DataError(f"{where}: shape={text} does not describe the {features} feature columns")
    return [int(part) for part in parts]


def _class_number(value: Array, *, where: str) -> int:
    if value.shape != () or value.dtype.kind not in "iu" or value.item() < 1:
        raise DataError(f"{where}: 'classes' must be one whole number from 1 on")
    return int(value)
