"""What hostile devices of a simulation do: to their rows before they train, or to the change that they send."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import LocalData

Array = NDArray[Any]
Attack = Literal["sign-flip", "scale", "random", "label-flip", "back-door", "absence"]

# How much longer a flipped, scaled or random change is than the honest one.
FLIPPED, SCALED, RANDOM = 3.0, 20.0, 5.0
# The class that a stamped example is to be taken for, and the side of the stamp.
TARGET, STAMP = 0, 3


def stamped(x: Array) -> Array:
    """Examples [n, ..., h, w] with a bright square in a corner."""
    marked = np.array(x)
    marked[..., -STAMP:, -STAMP:] = marked.max()
    return marked


def spoil_rows(data: LocalData, attack: Attack) -> LocalData:
    """What a hostile device trains on."""
    if attack == "label-flip":
        return replace(data, y=data.classes - 1 - data.y)
    if attack == "back-door":
        half = np.arange(len(data.y)) % 2 == 0
        x = np.where(half.reshape(-1, *[1] * (data.x.ndim - 1)), stamped(data.x), data.x)
        return replace(data, x=x, y=np.where(half, TARGET, data.y))
    return data


def spoil_change(change: dict[str, Array], attack: Attack, *, seed: int) -> dict[str, Array]:
    """What a hostile device sends instead of its change."""
    if attack == "sign-flip":
        return {name: (-FLIPPED * value).astype(value.dtype) for name, value in change.items()}
    if attack == "scale":
        return {name: (SCALED * value).astype(value.dtype) for name, value in change.items()}
    if attack == "random":
        rng = np.random.default_rng(seed)
        drawn = {name: rng.normal(size=value.shape) for name, value in change.items()}
        length = RANDOM * _norm(change) / max(_norm(drawn), 1e-12)
        return {name: (length * value).astype(change[name].dtype) for name, value in drawn.items()}
    return change


def _norm(tensors: dict[str, Array]) -> float:
    return float(np.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in tensors.values())))
