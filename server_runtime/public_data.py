"""Examples that the server itself may use, apart from what any device holds."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError, DataError
from fedwright.server_runtime.config import PublicSection
from fedwright.server_runtime.embedded_sets import load_named
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class PublicData:
    """x [n, *input_shape] and labels y [n] in 0 … classes - 1, or None where nobody labelled them."""

    x: Array
    y: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.x)


def load_public(section: PublicSection, spec: ModelSpec, *, seed: int) -> PublicData | None:
    """The examples of the file or set that a config names, as many as it asks for; None without one."""
    x: Array
    y: NDArray[np.int64] | None
    if section.data is not None:
        x, labels = load_named(section.data)
        y = labels if section.labelled else None
    elif section.file is not None:
        x, y = _read(Path(section.file), labelled=section.labelled)
    else:
        return None
    if 0 < section.rows < len(x):
        rng = np.random.default_rng(derive_seed(seed, "public"))
        rows = np.sort(rng.choice(len(x), section.rows, replace=False))
        x, y = x[rows], None if y is None else y[rows]
    found = PublicData(x, y)
    check_public(found, spec, foreign=section.foreign)
    return found


def _read(path: Path, *, labelled: bool) -> tuple[Array, NDArray[np.int64] | None]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"] if labelled else None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as err:
        raise DataError(f"public.file {path} cannot be read ({err}); it must be an .npz with arrays x and y") from err
    if x.ndim < 2 or x.dtype.kind not in "fiu" or not np.isfinite(x).all():
        raise DataError(f"public.file {path}: x must hold finite numbers [samples, ...]")
    if y is not None and (y.shape != x.shape[:1] or y.dtype.kind not in "iu" or (len(y) and y.min() < 0)):
        raise DataError(f"public.file {path}: y must hold one class number from 0 on for each of {len(x)} samples")
    return _numbers(x), None if y is None else y.astype(np.int64)


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
