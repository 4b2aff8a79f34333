"""Groups of nodes that are differentiated as one, against torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def _gelu(graph: Graph) -> str:
    scaled = graph.op("Div", "x", graph.scalar(math.sqrt(2)))
    plus = graph.op("Add", graph.op("Erf", scaled), graph.scalar(1.0))
    return graph.op("Mul", graph.op("Mul", "x", plus), graph.scalar(0.5))


def test_gelu() -> None:
    arrays = {"x": np.concatenate([_normal(3, 40), np.full((3, 2), [0.0, 20.0]), -_normal(3, 2) * 30], axis=1)}
    arrays["x"] = arrays["x"].astype(np.float32)

    found = layer_gradients(_gelu, arrays)

    assert relative_error(found, torch_gradients(functional.gelu, arrays)) < 1e-5


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1)], ids=["side by side", "overlapping"])
def test_relu_before_max_pooling(window: tuple[int, int, int]) -> None:
    kernel, stride, pad = window
    arrays = {"x": _normal(2, 3, 8, 8)}
    attrs: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}

    found = layer_gradients(lambda g: g.op("MaxPool", g.op("Relu", "x"), **attrs), arrays)

    wanted = torch_gradients(lambda x: functional.max_pool2d(torch.relu(x), kernel, stride, pad), arrays)
    assert relative_error(found, wanted) < 1e-5


def test_relu_that_is_read_elsewhere_stays_before_pooling() -> None:
    arrays = {"x": _normal(2, 3, 4, 4)}

    def layer(graph: Graph) -> str:
        active = graph.op("Relu", "x")
        pooled = graph.op("MaxPool", active, kernel_shape=[2, 2], strides=[2, 2])
        return graph.op("Mul", pooled, graph.op("ReduceSum", active, keepdims=0))

    found = layer_gradients(layer, arrays)

    wanted = torch_gradients(lambda x: functional.max_pool2d(torch.relu(x), 2) * torch.relu(x).sum(), arrays)
    assert relative_error(found, wanted) < 1e-5


@pytest.mark.parametrize("twice", [False, True], ids=["weights used once", "weights used twice"])
def test_attention(twice: bool) -> None:
    arrays = {"x": _normal(2, 5, 4), "v": _normal(2, 5, 3)}

    def layer(graph: Graph) -> str:
        keys = graph.op("Transpose", "x", perm=[0, 2, 1])
        weights = graph.op("Softmax", graph.op("MatMul", "x", keys), axis=-1)
        mixed = graph.op("MatMul", weights, "v")
        total = graph.op("ReduceSum", graph.op("Mul", weights, weights), graph.ints(2), keepdims=1)
        return graph.op("Mul", mixed, total) if twice else mixed

    def reference(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(x @ x.transpose(1, 2), dim=-1)
        total = (weights * weights).sum(2, keepdim=True) if twice else 1.0
        return weights @ v * total

    found = layer_gradients(layer, arrays, batch_axes={"x": 0, "v": 0})

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-5


def _convolution_and_norm(graph: Graph, channels: int) -> str:
    mean, variance = (graph.constant(np.full(channels, value, np.float32)) for value in (0.5, 1.0))
    x = graph.op("Conv", "x", "w", pads=[1, 1, 1, 1])
    y, new_mean, new_variance = graph.op(
        "BatchNormalization", x, "scale", "bias", mean, variance, outputs=3, training_mode=1, momentum=0.9
    )
    graph.rename_output(new_mean, "new_mean")
    graph.rename_output(new_variance, "new_variance")
    return y


@pytest.mark.parametrize("size", [2, 8], ids=["scaled output", "scaled weights"])
@pytest.mark.parametrize("shift", [0.0, 3.0], ids=["small mean", "large mean"])
def test_convolution_and_batch_norm_together(size: int, shift: float) -> None:
    """`shift` moves the input, and with it the mean of the convolution's output."""
    arrays = {"x": _normal(4, 20, size, size) + np.float32(shift), "w": _normal(3, 20, 3, 3)}
    arrays |= {"scale": 1 + 0.1 * _normal(3), "bias": _normal(3)}

    found = layer_gradients(lambda g: _convolution_and_norm(g, 3), arrays, also=("new_mean", "new_variance"))

    running = torch.full((3,), 0.5, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    wanted = torch_gradients(
        lambda x, w, scale, bias: functional.batch_norm(
            functional.conv2d(x, w, padding=1), *running, scale, bias, training=True
        ),
        arrays,
    )
    wanted |= {"new_mean": running[0].numpy(), "new_variance": running[1].numpy()}
    assert relative_error(found, wanted) < 1e-5
