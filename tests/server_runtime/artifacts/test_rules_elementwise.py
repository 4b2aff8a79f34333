"""Gradients of elementwise operators against torch over random shapes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedwright.server_runtime.artifacts.autodiff.engine import RULES
from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))

UNARY: dict[str, tuple[dict[str, Any], Callable[..., torch.Tensor]]] = {
    "Neg": ({}, lambda x: -x),
    "Identity": ({}, lambda x: x),
    "Relu": ({}, torch.relu),
    "LeakyRelu": ({"alpha": 0.2}, lambda x: functional.leaky_relu(x, 0.2)),
    "Elu": ({"alpha": 0.7}, lambda x: functional.elu(x, 0.7)),
    "Selu": ({}, lambda x: functional.selu(x)),
    "Softsign": ({}, lambda x: functional.softsign(x)),
    "Softplus": ({}, functional.softplus),
    "Sigmoid": ({}, torch.sigmoid),
    "Tanh": ({}, torch.tanh),
    "Exp": ({}, torch.exp),
    "Abs": ({}, torch.abs),
    "Erf": ({}, torch.erf),
    "Sin": ({}, torch.sin),
    "Cos": ({}, torch.cos),
    "HardSigmoid": ({"alpha": 1 / 6, "beta": 0.5}, lambda x: functional.hardsigmoid(x)),
    "HardSwish": ({}, lambda x: functional.hardswish(x)),
}
POSITIVE = {
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal,
}
STEPS = {"Sign": torch.sign, "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round}
BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Min": torch.minimum,
    "Max": torch.maximum,
}


def _normal(shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize("op", UNARY)
@settings(deadline=None, max_examples=4)
@given(shape=SHAPES)
def test_unary(op: str, shape: tuple[int, ...]) -> None:
    attrs, reference = UNARY[op]
    arrays = {"x": _normal(shape, scale=2.0)}

    found = layer_gradients(lambda g: g.op(op, "x", **attrs), arrays)

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


@pytest.mark.parametrize("op", POSITIVE)
@settings(deadline=None, max_examples=4)
@given(shape=SHAPES)
def test_unary_of_positive_values(op: str, shape: tuple[int, ...]) -> None:
    arrays = {"x": np.abs(_normal(shape)) + np.float32(0.5)}

    found = layer_gradients(lambda g: g.op(op, "x"), arrays)

    assert relative_error(found, torch_gradients(POSITIVE[op], arrays)) < 1e-4


@pytest.mark.parametrize("op", BINARY)
@settings(deadline=None, max_examples=5)
@given(shape=SHAPES, keep=st.tuples(st.booleans(), st.booleans(), st.booleans()), lead=st.integers(0, 2))
def test_binary_with_broadcasting(op: str, shape: tuple[int, ...], keep: tuple[bool, ...], lead: int) -> None:
    other = tuple(size if kept else 1 for size, kept in zip(shape, keep, strict=True))[lead:]
    arrays = {"x": _normal(shape), "b": np.abs(_normal(other, 1)) + np.float32(0.5)}
    axes = {"x": 0} if lead or not keep[0] else {"x": 0, "b": 0}

    found = layer_gradients(lambda g: g.op(op, "x", "b"), arrays, batch_axes=axes)

    assert relative_error(found, torch_gradients(lambda x, b: BINARY[op](x, b), arrays)) < 1e-4


@settings(deadline=None, max_examples=4)
@given(shape=SHAPES)
def test_sum_of_three(shape: tuple[int, ...]) -> None:
    arrays = {"x": _normal(shape), "b": _normal(shape[1:], 1), "c": _normal(shape[2:], 2)}

    found = layer_gradients(lambda g: g.op("Sum", "x", "b", "c"), arrays)

    assert relative_error(found, torch_gradients(lambda x, b, c: x + b + c, arrays)) < 1e-4


def test_mean_of_two() -> None:
    arrays = {"x": _normal((3, 4)), "b": _normal((4,), 1)}

    found = layer_gradients(lambda g: g.op("Mean", "x", "b"), arrays)

    assert relative_error(found, torch_gradients(lambda x, b: (x + b) / 2, arrays)) < 1e-4


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 6.0), (-1.0, 1.0), (0.5, None), (None, 0.5)], ids=["relu6", "both", "low", "high"]
)
def test_clip(low: float | None, high: float | None) -> None:
    arrays = {"x": _normal((3, 7), scale=5.0)}

    def layer(g: Graph) -> str:
        return g.op("Clip", "x", "" if low is None else g.scalar(low), "" if high is None else g.scalar(high))

    found = layer_gradients(layer, arrays)

    assert relative_error(found, torch_gradients(lambda x: torch.clamp(x, low, high), arrays)) < 1e-4


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.5])
def test_power_with_constant_exponent(exponent: float) -> None:
    arrays = {"x": np.abs(_normal((3, 4))) + np.float32(0.3)}

    found = layer_gradients(lambda g: g.op("Pow", "x", g.scalar(exponent)), arrays)

    assert relative_error(found, torch_gradients(lambda x: x**exponent, arrays)) < 1e-4


def test_power_with_trained_exponent() -> None:
    arrays = {"x": np.abs(_normal((3, 4))) + np.float32(0.3), "p": _normal((4,), 1)}

    found = layer_gradients(lambda g: g.op("Pow", "x", "p"), arrays)

    assert relative_error(found, torch_gradients(lambda x, p: x**p, arrays)) < 1e-4


@settings(deadline=None, max_examples=4)
@given(shape=SHAPES)
def test_where(shape: tuple[int, ...]) -> None:
    arrays = {"x": _normal(shape), "b": _normal(shape[1:], 1)}

    found = layer_gradients(lambda g: g.op("Where", g.op("Greater", "x", g.scalar(0.0)), "x", "b"), arrays)

    assert relative_error(found, torch_gradients(lambda x, b: torch.where(x > 0, x, b), arrays)) < 1e-4


def test_prelu() -> None:
    arrays = {"x": _normal((3, 4, 5)), "slope": np.abs(_normal((4, 1), 1))}

    found = layer_gradients(lambda g: g.op("PRelu", "x", "slope"), arrays)

    wanted = torch_gradients(lambda x, slope: functional.prelu(x, slope.flatten()), arrays)
    assert relative_error(found, wanted) < 1e-4


def test_a_value_used_twice_gets_both_gradients() -> None:
    arrays = {"x": _normal((3, 4))}

    found = layer_gradients(lambda g: g.op("Mul", "x", "x"), arrays)

    np.testing.assert_allclose(found["x"], torch_gradients(lambda x: x * x, arrays)["x"], rtol=1e-5)


@pytest.mark.parametrize("op", STEPS)
def test_operators_that_move_in_steps_pass_no_gradient(op: str) -> None:
    arrays = {"x": _normal((3, 4), scale=3.0)}

    found = layer_gradients(lambda g: g.op("Mul", "x", g.op(op, "x")), arrays)

    assert relative_error(found, torch_gradients(lambda x: x * STEPS[op](x), arrays)) < 1e-4


def test_a_cast_between_floats_passes_the_gradient() -> None:
    arrays = {"x": _normal((3, 4))}
    double, single = 11, 1

    found = layer_gradients(lambda g: g.op("Cast", g.op("Cast", "x", to=double), to=single), arrays)

    assert relative_error(found, torch_gradients(lambda x: x.double().float(), arrays)) < 1e-6


def test_every_rule_is_named_in_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    # Scan is the loop of an LSTM, and its gradients are tested as the LSTM's.
    assert [op for op in sorted(RULES.keys() - {"Scan"}) if f'"{op}"' not in tests] == []
