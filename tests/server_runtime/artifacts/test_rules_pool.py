"""Pooling gradients against torch, flat image regions included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.layer_gradients import layer_gradients, probe, relative_error, torch_gradients

MAX = {1: torch.nn.functional.max_pool1d, 2: torch.nn.functional.max_pool2d}
AVERAGE = {1: torch.nn.functional.avg_pool1d, 2: torch.nn.functional.avg_pool2d}
WINDOWS = st.tuples(st.integers(2, 3), st.integers(1, 3), st.integers(0, 1))


def _image(batch: int, rank: int, size: int) -> dict[str, np.ndarray]:
    shape = (batch, 2, *(size + axis for axis in range(rank)))
    return {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}


@settings(deadline=None, max_examples=25)
@given(batch=st.integers(1, 3), rank=st.integers(1, 2), size=st.integers(6, 9), window=WINDOWS, ceil=st.booleans())
def test_max_pool(batch: int, rank: int, size: int, window: tuple[int, int, int], ceil: bool) -> None:
    kernel, stride, pad = window
    # Elsewhere ONNX and torch do not agree on whether a window that starts in the padding exists.
    assume(not ceil or (pad == 0 and stride <= kernel))
    arrays = _image(batch, rank, size)
    attrs: dict[str, Any] = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}

    found = layer_gradients(lambda g: g.op("MaxPool", "x", ceil_mode=int(ceil), **attrs), arrays)

    wanted = torch_gradients(lambda x: MAX[rank](x, kernel, stride=stride, padding=pad, ceil_mode=ceil), arrays)
    assert relative_error(found, wanted) < 1e-4


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    rank=st.integers(1, 2),
    size=st.integers(6, 9),
    window=WINDOWS,
    ceil=st.booleans(),
    count_pad=st.booleans(),
)
def test_average_pool(
    batch: int, rank: int, size: int, window: tuple[int, int, int], ceil: bool, count_pad: bool
) -> None:
    kernel, stride, pad = window
    # Elsewhere ONNX and torch do not agree on whether a window that starts in the padding exists.
    assume(not ceil or (pad == 0 and stride <= kernel))
    arrays = _image(batch, rank, size)
    attrs: dict[str, Any] = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
    attrs |= {"ceil_mode": int(ceil), "count_include_pad": int(count_pad)}

    found = layer_gradients(lambda g: g.op("AveragePool", "x", **attrs), arrays)

    wanted = torch_gradients(
        lambda x: AVERAGE[rank](x, kernel, stride=stride, padding=pad, ceil_mode=ceil, count_include_pad=count_pad),
        arrays,
    )
    assert relative_error(found, wanted) < 1e-4


@pytest.mark.parametrize(
    ("operator", "reference"),
    [
        ("GlobalAveragePool", lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 1)),
        ("GlobalMaxPool", lambda x: torch.nn.functional.adaptive_max_pool2d(x, 1)),
    ],
    ids=["average", "max"],
)
def test_global_pool(operator: str, reference: Callable[..., Any]) -> None:
    arrays = _image(3, 2, 5)

    found = layer_gradients(lambda g: g.op(operator, "x"), arrays)

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


@pytest.mark.parametrize("operator", ["MaxPool", "GlobalMaxPool"])
def test_equal_maxima_share_the_gradient(operator: str) -> None:
    """A flat 4x4 image: each window (or the whole image) hands out its gradient once, in equal parts."""
    every: dict[str, dict[str, Any]] = {"MaxPool": {"kernel_shape": [2, 2], "strides": [2, 2]}, "GlobalMaxPool": {}}
    attrs = every[operator]
    arrays = {"x": np.full((1, 1, 4, 4), 0.5, np.float32)}

    found = layer_gradients(lambda g: g.op(operator, "x", **attrs), arrays)

    windows = found["y"].size
    wanted = np.repeat(
        np.repeat(probe(windows).reshape(found["y"].shape), 4 // found["y"].shape[2], 2), 4 // found["y"].shape[3], 3
    )
    np.testing.assert_allclose(found["x"], wanted * windows / 16, rtol=1e-6)


def test_overlapping_flat_windows_keep_the_sum() -> None:
    arrays = {"x": np.zeros((2, 3, 7, 7), np.float32)}

    found = layer_gradients(
        lambda g: g.op("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), arrays
    )

    assert found["x"].sum() == pytest.approx(probe(2 * 3 * 4 * 4).sum(), rel=1e-5)
