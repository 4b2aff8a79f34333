"""Convolution gradients against torch, for random sizes and for every form of the table."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d}
TRANSPOSED = {1: torch.nn.functional.conv_transpose1d, 2: torch.nn.functional.conv_transpose2d}


def _arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    size=st.integers(8, 11),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    layout=st.tuples(st.integers(1, 2), st.sampled_from([1, 1, 2, 4])),
    window=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2)),
)
def test_convolution(batch, size, channels, layout, window):
    inner, outer = channels
    rank, group = layout
    kernel, stride, dilation, pad = window
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
