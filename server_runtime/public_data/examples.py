"""Examples that the server itself may use, apart from what any device holds."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.class_names import checked_names, places_in
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.server_runtime.public_data.embedded_sets import load_named
from fedwright.server_runtime.public_data.section import PublicSection
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class PublicData:
    """x [n, *input_shape] and labels y [n] in 0 … classes - 1, or None where nobody labelled them.

    class_names: what the labels stand for, where that is told; else they are the run's own numbers.
    """

    x: Array
    y: NDArray[np.int64] | None
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def load_public(
    section: PublicSection, spec: ModelSpec, *, seed: int, class_names: Sequence[str] = ()
) -> PublicData | None:
    """The examples that a config names, as many as it asks for, in the run's classes; None where it names none."""
    if not section.given:
        return None
    whole = read_public(section)
    x, y = whole.x, whole.y
    if 0 < section.rows < len(x):
        rng = np.random.default_rng(derive_seed(seed, "public"))
        rows = np.sort(rng.choice(len(x), section.rows, replace=False))
        x, y = x[rows], None if y is None else y[rows]
    found = PublicData(x, y, () if section.foreign else whole.class_names)
    found = numbered_as(found, class_names)
    check_public(found, spec, foreign=section.foreign)
    return found


@overload
def numbered_as(data: PublicData, names: Sequence[str]) -> PublicData: ...
@overload
def numbered_as(data: PublicData | None, names: Sequence[str]) -> PublicData | None: ...
def numbered_as(data: PublicData | None, names: Sequence[str]) -> PublicData | None:
    """The same examples with labels that are places in `names`, the run's classes."""
    if data is None or data.y is None or not data.class_names or data.class_names == tuple(names):
        return data
    if not names:
        raise DataError("public data names its classes but those of the run are numbers; leave out the array 'classes'")
    try:
        places = np.array(places_in(names, data.class_names), np.int64)
    except DataError as err:
        raise DataError(f"public data does not suit the run: {err}; leave such samples out") from err
    return PublicData(data.x, places[data.y], tuple(names))


def as_dtype(data: PublicData | None, dtype: str) -> PublicData | None:
    """The same examples in the type that the model takes."""
    if data is None or str(data.x.dtype) == dtype:
        return data
    if dtype.startswith("int") and data.x.dtype.kind == "f":
        raise DataError("public data has fractions but the model takes whole numbers; save them as integers")
    return replace(data, x=data.x.astype(dtype))


def read_public(section: PublicSection) -> PublicData:
    """All examples of the file or the embedded set that a config names; DataError when they cannot be read."""
    if section.data is not None:
        images, digits = load_named(section.data)
        return PublicData(images, digits if section.labelled else None)
    path, labelled = Path(section.file or ""), section.labelled
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"] if labelled else None
            named = arrays["classes"] if "classes" in arrays else np.empty(0)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as err:
        raise DataError(f"public.file {path} cannot be read ({err}); it must be an .npz with arrays x and y") from err
    if x.ndim < 2 or x.dtype.kind not in "fiu" or not np.isfinite(x).all():
        raise DataError(f"public.file {path}: x must hold finite numbers [samples, ...]")
    if y is not None and (y.shape != x.shape[:1] or y.dtype.kind not in "iu" or (len(y) and y.min() < 0)):
        raise DataError(f"public.file {path}: y must hold one class number from 0 on for each of {len(x)} samples")
    names: tuple[str, ...] = ()
    if named.ndim == 1 and named.dtype.kind == "U":
        names = checked_names(map(str, named.tolist()), where=f"public.file {path}")
        if y is not None and len(y) and int(y.max()) >= len(names):
            raise DataError(f"public.file {path}: label {int(y.max())} has no name among its {len(names)} classes")
    return PublicData(_numbers(x), None if y is None else y.astype(np.int64), names)


def _numbers(x: Array) -> Array:
    """As a device takes them: bytes of rank 3 and up are images and become 0 … 1, word numbers stay whole."""
    if x.dtype == np.uint8 and x.ndim >= 3:
        return x.astype(np.float32) / 255
    return x.astype(np.int64) if x.dtype.kind in "iu" else x.astype(np.float32)


def check_public(data: PublicData, spec: ModelSpec, *, foreign: bool = False) -> None:
    """Raise DataError unless the examples suit the model; foreign: their labels are of another task."""
    shape = tuple(data.x.shape[1:])
    if shape != tuple(spec.input_shape):
        raise DataError(
            f"public data has samples of shape {list(shape)} but the model takes {list(spec.input_shape)};"
            " set public.file to data of the devices' shape instead of what is there now"
        )
    if data.y is not None and len(data.y) and int(data.y.max()) >= spec.classes and not foreign:
        raise DataError(
            f"public data has label {int(data.y.max())} but the model has {spec.classes} classes;"
            " leave such samples out, or set public.foreign where they are of another task"
        )


def need_public(data: PublicData | None, method: str, *, labels: bool = False) -> PublicData:
    """The examples, or an error that says how to give some."""
    if data is None or not len(data):
        raise ConfigError(
            f"method {method} needs examples on the server; set public.file, or public.data = 'digits:holdout' where"
            " the devices have digits, or public.rows in a simulation"
        )
    if labels and data.y is None:
        raise ConfigError(f"method {method} needs labelled examples on the server; set public.labelled = true")
    return data
