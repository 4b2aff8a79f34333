"""Models that travel as what changed since one that the receiver holds; both sides make the same bytes of it.

    model' = base + decode(encode(model - base))

What rounding or sparsity leaves out is not lost: the next change is taken from model', which the receiver has.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol import deltas, tensors
from fedwright.protocol.deltas import Codec
from fedwright.protocol.errors import BadBlob

Tensors = Mapping[str, NDArray[Any]]


def fits(base: Tensors, model: Tensors) -> bool:
    """Whether a model can be told as a change of another: the same tensors of the same shapes and types."""
    return base.keys() == model.keys() and all(
        base[name].shape == value.shape and base[name].dtype == value.dtype for name, value in model.items()
    )


def change_of(base: Tensors, model: Tensors, *, codec: Codec, keep_ratio: float = 1.0) -> bytes:
    """The change from one model to another that `fits`; tensors that are not float32 go whole."""
    change = {
        name: np.subtract(value, base[name]) if value.dtype == np.float32 else value for name, value in model.items()
    }
    return deltas.encode(change, codec=codec, keep=None if keep_ratio == 1.0 else keep_ratio)


def patched(base: Path, change: bytes | Path) -> bytes:
    """The blob of the changed model; BadBlob unless the change is one of just these tensors."""
    held, _ = deltas.load(base)
    found = deltas.decode(change, {name: value.shape for name, value in held.items()})
    for name, value in held.items():
        if found[name].dtype != value.dtype:
            raise BadBlob(f"the change of tensor {name} has type {found[name].dtype}, but {value.dtype} is held")
        if value.dtype == np.float32:
            found[name] = np.add(value, found[name])
    return tensors.save(found)
