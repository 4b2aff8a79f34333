"""Examples that the server itself may use, apart from what any device holds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data import sources
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.server_runtime.artifacts.structure import ModelSpec
from fedwright.server_runtime.config import PublicSection
from fedwright.server_runtime.rounds.sampling import derive_seed

Array = NDArray[Any]


@dataclass(frozen=True)
class PublicData:
    """x [n, *input_shape] and labels y [n] in 0 … classes - 1, or None where nobody labelled them."""

    x: Array
    y: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.x)


def load_public(section: PublicSection, spec: ModelSpec, *, seed: int) -> PublicData | None:
    """The examples that a config names, as many as it asks for; None without a source."""
    if section.source is None:
        return None
    data = sources.load(section.source, holdout_ratio=0.0, seed=0)
    rows = np.arange(len(data.y))
    if 0 < section.rows < len(rows):
        rng = np.random.default_rng(derive_seed(seed, "public"))
        rows = np.sort(rng.choice(rows, section.rows, replace=False))
    found = PublicData(np.asarray(data.x[rows]), data.y[rows] if section.labelled else None)
    check_public(found, spec)
    return found


def check_public(data: PublicData, spec: ModelSpec) -> None:
    """Raise DataError unless the examples suit the model."""
    shape = tuple(data.x.shape[1:])
    if shape != tuple(spec.input_shape):
        raise DataError(
            f"public data has samples of shape {list(shape)} but the model takes {list(spec.input_shape)};"
            " set public.source to data of the devices' shape"
        )
    if data.y is not None and len(data.y) and int(data.y.max()) >= spec.classes:
        raise DataError(
            f"public data has label {int(data.y.max())} but the model has {spec.classes} classes;"
            " leave such samples out or set model.classes"
        )


def need_public(data: PublicData | None, method: str, *, labels: bool = False) -> PublicData:
    """The examples, or an error that says how to give some."""
    if data is None or not len(data):
        raise ConfigError(
            f"method {method} needs examples on the server; set public.source, or public.rows in a simulation"
        )
    if labels and data.y is None:
        raise ConfigError(f"method {method} needs labelled examples on the server; set public.labelled = true")
    return data
