"""Gradients of normalisation layers against torch, and running statistics."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients


def _arrays(shape: tuple[int, ...], affine: tuple[int, ...], shift: float = 0.3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {
        "x": (rng.standard_normal(shape) + shift).astype(np.float32),
        "scale": (1 + 0.3 * rng.standard_normal(affine)).astype(np.float32),
        "bias": rng.standard_normal(affine).astype(np.float32),
    }


@settings(deadline=None, max_examples=15)
@given(batch=st.integers(1, 3), tokens=st.integers(1, 4), width=st.integers(2, 9), two_axes=st.booleans())
def test_layer_normalization(batch: int, tokens: int, width: int, two_axes: bool) -> None:
    normalized = (tokens, width) if two_axes else (width,)
    arrays = _arrays((batch, tokens, width), normalized)

    found = layer_gradients(
        lambda g: g.op("LayerNormalization", "x", "scale", "bias", axis=-len(normalized), epsilon=1e-5), arrays
    )

    wanted = torch_gradients(lambda x, scale, bias: functional.layer_norm(x, normalized, scale, bias), arrays)
    assert relative_error(found, wanted) < 1e-4


@settings(deadline=None, max_examples=10)
@given(batch=st.integers(1, 3), channels=st.integers(1, 4), size=st.integers(2, 5), rank=st.integers(1, 2))
def test_instance_normalization(batch: int, channels: int, size: int, rank: int) -> None:
    arrays = _arrays((batch, channels, *[size] * rank), (channels,))

    found = layer_gradients(lambda g: g.op("InstanceNormalization", "x", "scale", "bias", epsilon=1e-5), arrays)

    wanted = torch_gradients(
        lambda x, scale, bias: functional.instance_norm(x, weight=scale, bias=bias, eps=1e-5), arrays
    )
    assert relative_error(found, wanted) < 1e-4


@settings(deadline=None, max_examples=15)
@given(batch=st.integers(2, 4), channels=st.integers(1, 3), rank=st.integers(0, 2), shift=st.sampled_from([0.3, 30.0]))
def test_batch_normalization_trains_as_torch_does(batch: int, channels: int, rank: int, shift: float) -> None:
    arrays = _arrays((batch, channels, *[4] * rank), (channels,), shift)
    running = {"mean": np.zeros(channels, np.float32), "variance": np.ones(channels, np.float32)}

    found = _batch_norm(arrays, running)

    reference = {name: torch.tensor(array, dtype=torch.float64) for name, array in running.items()}
    wanted = torch_gradients(
        lambda x, scale, bias: functional.batch_norm(
            x, reference["mean"], reference["variance"], scale, bias, training=True, momentum=0.1
        ),
        arrays,
    )
    wanted |= {"new_mean": reference["mean"].numpy(), "new_variance": reference["variance"].numpy()}
    assert relative_error(found, wanted) < 1e-4


def _batch_norm(arrays: dict[str, np.ndarray], running: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    def layer(graph: Graph) -> str:
        mean, variance = (graph.constant(array) for array in running.values())
        y, new_mean, new_variance = graph.op(
            "BatchNormalization", "x", "scale", "bias", mean, variance, outputs=3, training_mode=1, momentum=0.9
        )
        graph.rename_output(new_mean, "new_mean")
        graph.rename_output(new_variance, "new_variance")
        return y

    return layer_gradients(layer, arrays, also=("new_mean", "new_variance"))


def test_frozen_batch_normalization() -> None:
    arrays = _arrays((3, 2, 4, 4), (2,))
    mean, variance = np.array([0.1, -0.2], np.float32), np.array([0.5, 2.0], np.float32)

    found = layer_gradients(
        lambda g: g.op("BatchNormalization", "x", "scale", "bias", g.constant(mean), g.constant(variance)), arrays
    )

    fixed = torch.tensor(mean).double(), torch.tensor(variance).double()
    wanted = torch_gradients(lambda x, scale, bias: functional.batch_norm(x, *fixed, scale, bias), arrays)
    assert relative_error(found, wanted) < 1e-4
