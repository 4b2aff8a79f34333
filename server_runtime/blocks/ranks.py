"""Adapters of a smaller rank: the first columns of up with the first rows of down, gate by gate.

up: [gates · out, rank], down: [gates · rank, in]; up down of the first r is a part of the sum over all ranks, so a
device may train it alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.server_runtime.blocks.lora import DOWN, UP

Array = NDArray[Any]


def cut_rank(values: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """The adapters' first `rank` components; what is no adapter stays whole."""
    cut = {}
    for name, value in values.items():
        if name.endswith(UP):
            cut[name] = np.ascontiguousarray(value[:, :rank])
        elif name.endswith(DOWN):
            full = values[name.removesuffix(DOWN) + UP].shape[1]
            cut[name] = _by_gate(value, full)[:, :rank].reshape(-1, value.shape[1])
        else:
            cut[name] = value
    return cut


def pad_rank(values: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """Adapters of a smaller rank as a part of those of rank `rank`, zero beyond."""
    padded = {}
    for name, value in values.items():
        if name.endswith(UP):
            padded[name] = np.pad(value, ((0, 0), (0, rank - value.shape[1])))
        elif name.endswith(DOWN):
            own = values[name.removesuffix(DOWN) + UP].shape[1]
            wide = np.pad(_by_gate(value, own), ((0, 0), (0, rank - own), (0, 0)))
            padded[name] = wide.reshape(-1, value.shape[1])
        else:
            padded[name] = value
    return padded


def _by_gate(down: Array, rank: int) -> Array:
    """[gates, rank, in]."""
    return down.reshape(-1, rank, down.shape[1])
