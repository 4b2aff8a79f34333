"""Gradients of reductions and softmaxes against torch over random shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
AXES = st.sampled_from([(0,), (1,), (-1,), (1, 2), (0, 2), (0, 1, 2)])

BY_ATTRIBUTE: dict[str, Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceMax": lambda x, axes, keep: torch.amax(x, axes, keep),
    "ReduceMin": lambda x, axes, keep: torch.amin(x, axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, dim=axes, keepdim=keep),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keep),
}


def _normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", BY_ATTRIBUTE)
@settings(deadline=None, max_examples=5)
@given(shape=SHAPES, axes=AXES, keep=st.booleans())
def test_reductions(op: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> None:
    arrays = {"x": _normal(shape)}

    found = layer_gradients(lambda g: g.op(op, "x", axes=list(axes), keepdims=int(keep)), arrays)

    assert relative_error(found, torch_gradients(lambda x: BY_ATTRIBUTE[op](x, axes, keep), arrays)) < 1e-4


@settings(deadline=None, max_examples=8)
@given(shape=SHAPES, axes=AXES, keep=st.booleans())
def test_reduce_sum(shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> None:
    arrays = {"x": _normal(shape)}

    found = layer_gradients(lambda g: g.op("ReduceSum", "x", g.ints(*axes), keepdims=int(keep)), arrays)

    assert relative_error(found, torch_gradients(lambda x: x.sum(axes, keep), arrays)) < 1e-4


def test_equal_largest_entries_share_the_gradient() -> None:
    arrays = {"x": np.array([[1.0, 3.0, 3.0]], np.float32)}

    found = layer_gradients(lambda g: g.op("ReduceMax", "x", axes=[1], keepdims=0), arrays)

    np.testing.assert_allclose(found["x"], [[0.0, 0.5, 0.5]])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumulative_sum(reverse: int, exclusive: int) -> None:
    arrays = {"x": _normal((3, 5))}

    def reference(x: torch.Tensor) -> torch.Tensor:
        x = x.flip(1) if reverse else x
        total = x.cumsum(1) - x * exclusive
        return total.flip(1) if reverse else total

    def layer(g: Graph) -> str:
        return g.op("CumSum", "x", g.constant(np.array(1, np.int64)), reverse=reverse, exclusive=exclusive)

    assert relative_error(layer_gradients(layer, arrays), torch_gradients(reference, arrays)) < 1e-4


@pytest.mark.parametrize(("op", "reference"), [("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax)])
@settings(deadline=None, max_examples=5)
@given(shape=st.tuples(*[st.integers(2, 4)] * 3), axis=st.integers(-2, 2))
def test_softmaxes(op: str, reference: Callable[..., Any], shape: tuple[int, ...], axis: int) -> None:
    arrays = {"x": _normal(shape)}

    found = layer_gradients(lambda g: g.op(op, "x", axis=axis), arrays)

    assert relative_error(found, torch_gradients(lambda x: reference(x, axis), arrays)) < 1e-4
