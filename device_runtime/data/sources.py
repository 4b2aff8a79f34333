"""One line of text names a data set: `npz:file`, `npy:folder`, `csv:file`, `images:folder`, `graph:file`, `python:…`.

A plain path is guessed by its suffix. Options follow a question mark: `npz:data.npz?classes=10`,
`csv:data.csv?label=species&shape=1,8,8`, `csv:rooms.csv?targets=heat,light`, `csv:load.csv?window=24&horizon=6`,
`text:book.txt?window=64`, `npz:masks.npz?task=segment`. An installed package may offer further schemes in the
entry-point group `fedwright.sources`: each a function of the place and the options, which takes out of the options
those that it knows.
Whatever the source, the result is checked here. `classes:3,7` is no data but what classes there would be.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data import tables
from fedwright.device_runtime.data.bystander import CLASSES, only_classes
from fedwright.device_runtime.data.graph import SUFFIX, inner_edges, read_graph
from fedwright.device_runtime.data.labels import count_classes, numbered
from fedwright.device_runtime.data.local import Array, Labels, LocalData, Raw
from fedwright.device_runtime.data.targets import counts_of, read_targets
from fedwright.protocol.errors import DataError
from fedwright.protocol.goals import CLASSIFY, GOALS
from fedwright.protocol.support import plugins

Options = dict[str, str]
Rows = NDArray[np.int64] | slice
Reader = Callable[[str, Options], Raw]

_CHECK_ROWS = 1024


def load(source: str, *, holdout_ratio: float, seed: int) -> LocalData:
    """Read a source, check it, and hold out a share that depends only on the seed."""
    if not 0 <= holdout_ratio < 1:
        raise DataError(f"holdout ratio {holdout_ratio} must be at least 0 and below 1")
    scheme, place, options = parse(source)
    if scheme == CLASSES:
        return only_classes(place)
    classes = _integer_option(options, "classes")
    goal = _goal(options, source)
    raw = _reader(scheme)(place, options)
    if options:
        raise DataError(f"data source {source!r} has an unknown option {sorted(options)[0]!r}")
    if classes is not None and raw.class_names:
        raise DataError(f"data source {source!r} has names for its classes; leave ?classes={classes} out")
    if classes is not None:
        raw = replace(raw, classes=classes)
    return assemble(raw, where=source, holdout_ratio=holdout_ratio, seed=seed, goal=goal)


def _goal(options: Options, source: str) -> str:
    """What the labels are for: as the option says, else as the others imply."""
    name = options.pop("task", implied_goal(source))
    if name not in GOALS:
        raise DataError(f"data source {source!r}: task {name!r} is not known; choose one of {', '.join(GOALS)}")
    return name


def implied_goal(source: str) -> str:
    """What labels are for by the other options of their source."""
    options = parse(source)[2]
    if source.startswith("text:"):
        return "language"
    if "window" in options:
        return "forecast"
    return "regress" if "targets" in options else CLASSIFY


def parse(source: str) -> tuple[str, str, Options]:
    """Scheme, place and options of a source."""
    head, colon, rest = source.partition(":")
    if head == CLASSES and colon:
        return head, rest, {}
    if not colon or (head not in READERS and _plugin(head) is None):
        head, rest = _guess(source), source
    place, _, query = rest.partition("?")
    if not place:
        raise DataError(f"data source {source!r} names no {'function' if head == 'python' else 'path'}")
    return head, place, dict(parse_qsl(query, keep_blank_values=True))


def absolute(source: str) -> str:
    """The same source, independent of the present folder."""
    scheme, place, _ = parse(source)
    if scheme in ("python", CLASSES) or (scheme not in READERS and not Path(place).expanduser().exists()):
        return source
    _, mark, query = source.partition("?")
    return f"{scheme}:{Path(place).expanduser().absolute()}{mark}{query}"


def _guess(source: str) -> str:
    path = Path(source.partition("?")[0])
    if path.name.endswith(SUFFIX):
        return "graph"
    if path.suffix in (".npz", ".csv"):
        return path.suffix[1:]
    if path.is_dir():
        return "npy" if (path / "x.npy").exists() else "images"
    if path.exists():
        raise DataError(
            f"data source {source!r} is of unknown kind; put one of {', '.join(_schemes())} and ':' before it"
        )
    raise DataError(f"data source {source!r} does not exist; give a path or one of {', '.join(_schemes())} with ':'")


def assemble(raw: Raw, *, where: str, holdout_ratio: float, seed: int, goal: str = CLASSIFY) -> LocalData:
    """Checked arrays, split into a training and a held-out part."""
    x = _inputs(raw.x, where=where)
    y: Any
    given: list[Any]
    if goal == CLASSIFY:
        (y, *given), names = numbered(raw, where=where)
        outputs = None
    else:
        ((y, *given), outputs), names = read_targets(raw, GOALS[goal], where=where), ()
    _check_pair(x, y, where=where)
    edges = raw.edges
    if raw.x_holdout is None or not given:
        keep, out = _split(len(y), holdout_ratio, seed, where=where) if raw.holdout is None else _apart(y, raw.holdout)
        if edges is not None:
            rows = np.arange(len(y))
            edges = inner_edges(edges, np.concatenate([rows[keep], rows[out]]))
        (x, x_out), (y, y_out) = (x[keep], x[out]), (y[keep], y[out])
    else:
        x_out, y_out = _inputs(raw.x_holdout, where=where), given[0]
        _check_pair(x_out, y_out, where=where + " (holdout)")
    if x_out.shape[1:] != x.shape[1:]:
        raise DataError(f"{where}: x has samples of shape {list(x.shape[1:])} but x_holdout {list(x_out.shape[1:])}")
    if "f" in (x.dtype.kind, x_out.dtype.kind):
        x, x_out = _as_float32(x), _as_float32(x_out)
    classes = outputs or count_classes(len(names) if names else raw.classes, [y, y_out], where=where)
    return LocalData(
        x=x,
        y=y,
        x_holdout=x_out,
        y_holdout=y_out,
        classes=classes,
        class_counts=counts_of(y, classes),
        input_shape=tuple(x.shape[1:]),
        class_names=names,
        edges=edges,
        goal=goal,
    )


def _apart(y: Labels, holdout: Labels) -> tuple[Rows, Rows]:
    """Rows to train on, and those that are held out."""
    return np.setdiff1d(np.arange(len(y)), holdout), holdout


def _inputs(x: Array, *, where: str) -> Array:
    """Whole numbers as they are, else finite float32; bytes of rank 3 and up are images and become 0 … 1."""
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where}: x has type {x.dtype}; it must hold numbers")
    if x.ndim < 2:
        raise DataError(f"{where}: x has shape {list(x.shape)}; it must be [samples, ...] with at least two dimensions")
    if 0 in x.shape[1:]:
        raise DataError(f"{where}: samples have the empty shape {list(x.shape[1:])}")
    if x.dtype == np.uint8 and x.ndim >= 3:
        scaled = x.astype(np.float32)
        scaled /= 255
        return scaled
    if x.dtype.kind in "iu":
        return x
    result = _as_float32(x)
    # By parts, so that the check of a memory-mapped file needs next to no memory.
    for start in range(0, len(result), _CHECK_ROWS):
        finite = np.isfinite(result[start : start + _CHECK_ROWS])
        if not finite.all():
            row = start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
            raise DataError(f"{where}: x has a value that is NaN or infinite in sample {row}; clean or drop it")
    return result


def _as_float32(x: Array) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return x if x.dtype == np.float32 else x.astype(np.float32)  # type: ignore[return-value]


def _check_pair(x: Array, y: Array, *, where: str) -> None:
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples but {len(y)} labels")
    if len(y) == 0:
        raise DataError(f"{where}: the data set is empty")


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
    """What `module:function` returns."""
    name = f"{plugins.PYTHON}{place}"
    return _raw(_function(plugins.parse(plugins.SOURCES, name))(), where=name)


def _raw(found: object, *, where: str) -> Raw:
    """What a user's function returned: (x, y), or a dict with the same names as an npz file."""
    if isinstance(found, Mapping):
        return tables.from_mapping({name: np.asarray(array) for name, array in found.items()}, where=where)
    if isinstance(found, tuple) and len(found) == 2:
        return Raw(np.asarray(found[0]), np.asarray(found[1]))
    raise DataError(f"{where} must return (x, y) or a dict with x and y, not {type(found).__name__}")


def _function(plugin: plugins.Plugin) -> Callable[..., object]:
    found = plugin.load()
    if not callable(found):
        raise plugin.problem(f"it is a {type(found).__name__}; it must be a function")
    function: Callable[..., object] = found
    return function


def _plugin(scheme: str) -> plugins.Plugin | None:
    """Who reads a scheme that is not one of ours."""
    return plugins.find(plugins.SOURCES, scheme, taken=READERS)


def _schemes() -> list[str]:
    """All that may stand before the colon."""
    return sorted([*READERS, *(plugin.name for plugin in plugins.offered(plugins.SOURCES, taken=READERS))])


def _reader(scheme: str) -> Reader:
    plugin = None if scheme in READERS else _plugin(scheme)
    if plugin is None:
        return READERS[scheme]
    read = _function(plugin)
    return lambda place, options: _raw(read(place, options), where=f"{scheme}:{place}")


def _read_images(place: str, options: Options) -> Raw:
    from fedwright.device_runtime.data.images import read_folder

    return read_folder(place, options)


def _read_csv(place: str, options: Options) -> Raw:
    if "targets" not in options and "window" not in options:
        return tables.read_csv(place, options)
    from fedwright.device_runtime.data.windows import read_series

    return read_series(place, options)


def _read_text(place: str, options: Options) -> Raw:
    from fedwright.device_runtime.data.windows import read_text

    return read_text(place, options)


READERS: dict[str, Reader] = {
    "npz": tables.read_npz,
    "npy": tables.read_npy_folder,
    "csv": _read_csv,
    "text": _read_text,
    "images": _read_images,
    "graph": read_graph,
    "python": _read_python,
}
