"""Trigonometric and hyperbolic functions, and remainders, against torch in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients

# (from where to where the input lies, the function)
FUNCTIONS: dict[str, tuple[float, float, Callable[[torch.Tensor], torch.Tensor]]] = {
    "Tan": (-1.2, 1.2, torch.tan),
    "Asin": (-0.9, 0.9, torch.asin),
    "Acos": (-0.9, 0.9, torch.acos),
    "Atan": (-3, 3, torch.atan),
    "Sinh": (-3, 3, torch.sinh),
    "Cosh": (-3, 3, torch.cosh),
    "Asinh": (-3, 3, torch.asinh),
    "Acosh": (1.2, 3, torch.acosh),
    "Atanh": (-0.9, 0.9, torch.atanh),
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_slope(op: str) -> None:
    low, high, reference = FUNCTIONS[op]
    arrays = {"x": np.linspace(low, high, 12, dtype=np.float32).reshape(3, 4)}

    found = layer_gradients(lambda g: g.op(op, "x"), arrays)

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


def test_remainder() -> None:
    arrays = {
        "x": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4),
        "b": np.array([0.7, 0.9, 1.1, 1.3], np.float32),
    }

    found = layer_gradients(lambda g: g.op("Mod", "x", "b", fmod=1), arrays)

    assert relative_error(found, torch_gradients(lambda x, b: torch.fmod(x, b), arrays)) < 1e-4
