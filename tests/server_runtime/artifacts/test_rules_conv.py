"""Convolution gradients against torch, for random sizes and for every form of the table."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.server_runtime.artifacts.autodiff import conv_forms
from fedwright.server_runtime.artifacts.autodiff.rules import conv, depthwise
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
def test_convolution(
    batch: int, size: int, channels: tuple[int, int], layout: tuple[int, int], window: tuple[int, int, int, int]
) -> None:
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
    attrs: dict[str, Any] = {
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


@settings(deadline=None, max_examples=15)
@given(
    batch=st.integers(1, 3),
    size=st.integers(3, 6),
    layout=st.tuples(st.integers(1, 2), st.sampled_from([1, 2])),
    window=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 1)),
    more=st.integers(0, 1),
)
def test_transposed_convolution(
    batch: int, size: int, layout: tuple[int, int], window: tuple[int, int, int, int], more: int
) -> None:
    rank, group = layout
    kernel, stride, dilation, pad = window
    more = min(more, stride - 1)
    arrays = _arrays(
        {
            "x": (batch, 2 * group, *(size + axis for axis in range(rank))),
            "w": (2 * group, 3, *[kernel] * rank),
            "b": (3 * group,),
        }
    )
    attrs: dict[str, Any] = {
        "strides": [stride] * rank,
        "pads": [pad] * 2 * rank,
        "dilations": [dilation] * rank,
        "group": group,
    }

    found = layer_gradients(
        lambda g: g.op("ConvTranspose", "x", "w", "b", output_padding=[more] * rank, **attrs), arrays
    )

    wanted = torch_gradients(lambda x, w, b: TRANSPOSED[rank](x, w, b, stride, pad, more, group, dilation), arrays)
    assert relative_error(found, wanted) < 1e-4


# form -> (channels in, channels out, group, stride) that it can do
WEIGHT_FORMS = {
    "dw_per_sample": (3, 5, 1, 2),
    "dw_grouped": (4, 6, 2, 2),
    "dw_channels_first": (3, 5, 1, 2),
    "dw_shifted": (3, 5, 1, 2),
    "dw_block": (3, 5, 1, 1),
    "dw_positions_first": (3, 5, 1, 2),
    "dw_depthwise": (4, 4, 4, 2),
}
INPUT_FORMS = {"dx_transposed": (4, 6, 2, 2), "dx_turned": (3, 5, 1, 1)}


@pytest.mark.parametrize("form", sorted(WEIGHT_FORMS))
def test_every_form_of_the_weight_gradient(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "weight_form", lambda sizes: getattr(conv_forms, form))

    assert _error_of_form(*WEIGHT_FORMS[form]) < 1e-4


@pytest.mark.parametrize("form", sorted(INPUT_FORMS))
def test_every_form_of_the_input_gradient(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "input_form", lambda sizes: getattr(conv_forms, form))

    assert _error_of_form(*INPUT_FORMS[form]) < 1e-4


def test_depthwise_convolution_as_dense_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = _error_of_form(4, 4, 4, 2), _error_of_form(4, 4, 4, 1)
    monkeypatch.setattr(depthwise, "dense_pays", lambda sizes: sizes.depthwise)
    lowered = _error_of_form(4, 4, 4, 2), _error_of_form(4, 4, 4, 1)

    assert max(small, large, *lowered) < 1e-4


def test_no_form_is_left_untested() -> None:
    forms = {name for name in vars(conv_forms) if name.startswith(("dw_", "dx_"))}

    assert forms == {*WEIGHT_FORMS, *INPUT_FORMS}


def _error_of_form(channels_in: int, channels_out: int, group: int, stride: int) -> float:
    """Uneven image, kernel and padding; built for any batch size and run at three."""
    arrays = _arrays({"x": (3, channels_in, 9, 11), "w": (channels_out, channels_in // group, 3, 2)})
    attrs: dict[str, Any] = {"strides": [stride] * 2, "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": group}

    found = layer_gradients(lambda g: g.op("Conv", "x", "w", **attrs), arrays)

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, 1, 1, 2))
        return torch.nn.functional.conv2d(padded, w, stride=stride, dilation=(1, 2), groups=group)

    return relative_error(found, torch_gradients(reference, arrays))
