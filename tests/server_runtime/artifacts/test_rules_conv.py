"""Convolution gradients against torch, for random sizes and for every form of the table."""

import numpy as np
import pytest
import torch
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d}
TRANSPOSED = {1: torch.nn.functional.conv_transpose1d, 2: torch.nn.functional.conv_transpose2d}


def _arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@settings(deadline=None, max_examples=25)
@given(
    rank=st.integers(1, 2),
    batch=st.integers(1, 3),
    group=st.sampled_from([1, 1, 2, 4]),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pad=st.integers(0, 2),
    size=st.integers(8, 11),
)
def test_convolution(rank, batch, group, channels, kernel, stride, dilation, pad, size):
    inner, outer = channels
    arrays = _arrays(
        {
            "x": (batch, group * inner, *(size + axis for axis in range(rank))),
            "w": (group * outer, inner, *[kernel] * rank),
            "b": (group * outer,),
        }
    )
    attrs = {
        "strides": [stride] * rank,
        "pads": [pad] * 2 * rank,
        "dilations": [dilation] * rank,
        "group": group,
        "kernel_shape": [kernel] * rank,
    }

    found = layer_gradients(lambda g: g.op("Conv", "x", "w", "b", **attrs), arrays)

    wanted = torch_gradients(
        lambda x, w, b: CONV[rank](x, w, b, stride=stride, padding=pad, dilation=dilation, groups=group), arrays
    )
    assert relative_error(found, wanted) < 1e-4
