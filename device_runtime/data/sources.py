"""One line of text names a data set: `npz:file`, `npy:folder`, `csv:file`, `images:folder`, `python:module:function`.

A plain path is guessed by its suffix. Options follow a question mark: `npz:data.npz?classes=10`,
`csv:data.csv?label=species&shape=1,8,8`. Whatever the source, the result is checked here.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data import tables
from fedwright.device_runtime.data.local import Array, Labels, LocalData, Raw
from fedwright.protocol.errors import DataError

Options = dict[str, str]
Rows = NDArray[np.int64] | slice
Reader = Callable[[str, Options], Raw]

_CHECK_ROWS = 1024
# What a report can carry; a larger label is a mistake, not a class.
MAX_CLASSES = 1_000_000


def load(source: str, *, holdout_ratio: float, seed: int) -> LocalData:
    """Read a source, check it, and hold out a share that depends only on the seed."""
    if not 0 <= holdout_ratio < 1:
        raise DataError(f"holdout ratio {holdout_ratio} must be at least 0 and below 1")
    scheme, place, options = parse(source)
    classes = _integer_option(options, "classes")
    raw = READERS[scheme](place, options)
    if options:
        raise DataError(f"data source {source!r} has an unknown option {sorted(options)[0]!r}")
    if classes is not None:
        raw = replace(raw, classes=classes)
    return assemble(raw, where=source, holdout_ratio=holdout_ratio, seed=seed)


def parse(source: str) -> tuple[str, str, Options]:
    """Scheme, place and options of a source."""
    head, colon, rest = source.partition(":")
    if not colon or head not in READERS:
        head, rest = _guess(source), source
    place, _, query = rest.partition("?")
    if not place:
        raise DataError(f"data source {source!r} names no {'function' if head == 'python' else 'path'}")
    return head, place, dict(parse_qsl(query, keep_blank_values=True))


def absolute(source: str) -> str:
    """The same source, independent of the present folder."""
    scheme, place, _ = parse(source)
    if scheme == "python":
        return source
    _, mark, query = source.partition("?")
    return f"{scheme}:{Path(place).expanduser().absolute()}{mark}{query}"


def _guess(source: str) -> str:
    path = Path(source.partition("?")[0])
    if path.suffix in (".npz", ".csv"):
        return path.suffix[1:]
    if path.is_dir():
        return "npy" if (path / "x.npy").exists() else "images"
    if path.exists():
        raise DataError(
            f"data source {source!r} is of unknown kind; put one of {', '.join(sorted(READERS))} and ':' before it"
        )
    raise DataError(
        f"data source {source!r} does not exist; give a path or one of {', '.join(sorted(READERS))} with ':'"
    )


def assemble(raw: Raw, *, where: str, holdout_ratio: float, seed: int) -> LocalData:
    """Checked arrays, split into a training and a held-out part."""
    x, y = _inputs(raw.x, where=where), _labels(raw.y, where=where)
    if raw.x_holdout is None or raw.y_holdout is None:
        _check_pair(x, y, where=where)
        keep, out = _split(len(y), holdout_ratio, seed, where=where)
        (x, x_out), (y, y_out) = (x[keep], x[out]), (y[keep], y[out])
    else:
        x_out, y_out = _inputs(raw.x_holdout, where=where), _labels(raw.y_holdout, where=where)
        _check_pair(x, y, where=where)
        _check_pair(x_out, y_out, where=where + " (holdout)")
    if x_out.shape[1:] != x.shape[1:]:
        raise DataError(f"{where}: x has samples of shape {list(x.shape[1:])} but x_holdout {list(x_out.shape[1:])}")
    classes = _classes(raw.classes, [y, y_out], where=where)
    return LocalData(
        x=x,
        y=y,
        x_holdout=x_out,
        y_holdout=y_out,
        classes=classes,
        class_counts=tuple(np.bincount(y, minlength=classes).tolist()),
        input_shape=tuple(x.shape[1:]),
    )


def _inputs(x: Array, *, where: str) -> NDArray[np.float32]:
    """Finite float32 inputs; bytes of rank 3 and up are images and become 0 … 1."""
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where}: x has type {x.dtype}; it must hold numbers")
    if x.ndim < 2:
        raise DataError(f"{where}: x has shape {list(x.shape)}; it must be [samples, ...] with at least two dimensions")
    if 0 in x.shape[1:]:
        raise DataError(f"{where}: samples have the empty shape {list(x.shape[1:])}")
    scaled = x.dtype == np.uint8 and x.ndim >= 3
    with np.errstate(over="ignore"):
        result: NDArray[np.float32] = x if x.dtype == np.float32 else x.astype(np.float32)  # type: ignore[assignment]
    if scaled:
        result /= 255
    # By parts, so that the check of a memory-mapped file needs next to no memory.
    for start in range(0, len(result), _CHECK_ROWS):
        finite = np.isfinite(result[start : start + _CHECK_ROWS])
        if not finite.all():
            row = start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
            raise DataError(f"{where}: x has a value that is NaN or infinite in sample {row}; clean or drop it")
    return result


def _labels(y: Array, *, where: str) -> Labels:
    if y.ndim != 1:
        raise DataError(f"{where}: y has shape {list(y.shape)}; it must be one label per sample")
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.floor(y)).all():
        return y.astype(np.int64)
    if y.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are {y.dtype}, not integers; number the classes from 0")
    return y.astype(np.int64)


def _check_pair(x: Array, y: Labels, *, where: str) -> None:
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples but {len(y)} labels")
    if len(y) == 0:
        raise DataError(f"{where}: the data set is empty")


def _classes(declared: int | None, labels: list[Labels], *, where: str) -> int:
    lowest, highest = min(int(part.min(initial=0)) for part in labels), max(int(part.max(initial=0)) for part in labels)
    classes = highest + 1 if declared is None else declared
    if classes > MAX_CLASSES:
        raise DataError(
            f"{where}: {classes} classes are more than {MAX_CLASSES}; number the labels from 0 without gaps"
        )
    if lowest < 0 or highest >= classes:
        bad = lowest if lowest < 0 else highest
        raise DataError(f"{where}: label {bad} is out of range; {classes} classes are numbered 0 to {classes - 1}")
    return classes


def _split(samples: int, ratio: float, seed: int, *, where: str) -> tuple[Rows, Rows]:
    """Sorted rows to train on and rows to hold out."""
    if ratio == 0:
        return slice(None), slice(0, 0)
    if samples < 2:
        raise DataError(f"{where}: one sample cannot be split; the holdout would be empty, so add data or hold out 0")
    held = min(max(1, round(samples * ratio)), samples - 1)
    order = np.random.default_rng([seed, samples]).permutation(samples)
    return np.sort(order[held:]), np.sort(order[:held])


def _integer_option(options: Options, name: str) -> int | None:
    text = options.pop(name, None)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise DataError(f"data option {name}={text!r} must be a whole number from 1 on")
    return int(text)


def _read_python(place: str, options: Options) -> Raw:
    """What `module:function` returns: (x, y), or a dict with the same names as an npz file."""
    module_name, colon, function_name = place.partition(":")
    if not colon or not function_name:
        raise DataError(f"data source 'python:{place}' must be python:module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ImportError as err:
        raise DataError(f"cannot import {module_name!r}: {err}; install it or set PYTHONPATH") from err
    except AttributeError as err:
        raise DataError(f"module {module_name!r} has no function {function_name!r}") from err
    found = function()
    if isinstance(found, Mapping):
        return tables.from_mapping({name: np.asarray(array) for name, array in found.items()}, where=f"python:{place}")
    if isinstance(found, tuple) and len(found) == 2:
        return Raw(np.asarray(found[0]), np.asarray(found[1]))
    raise DataError(f"python:{place} must return (x, y) or a dict with x and y, not {type(found).__name__}")


def _read_images(place: str, options: Options) -> Raw:
    from fedwright.device_runtime.data.images import read_folder

    return read_folder(place, options)


READERS: dict[str, Reader] = {
    "npz": tables.read_npz,
    "npy": tables.read_npy_folder,
    "csv": tables.read_csv,
    "images": _read_images,
    "python": _read_python,
}
