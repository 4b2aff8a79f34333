"""Gradients of one layer written in plain operators, and the same from torch."""

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import torch

import fedwright.server_runtime.artifacts.autodiff.rules  # noqa: F401  (registers the rules)
from fedwright.server_runtime.artifacts.autodiff.engine import differentiate
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.autodiff.lowering import lower
from fedwright.server_runtime.artifacts.autodiff.shapes import measure

Layer = Callable[[Graph], str]


def layer_gradients(
    layer: Layer, arrays: dict[str, np.ndarray], *, batch_axes: dict[str, int] | None = None, also: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Gradients of sum(layer(...) * cos(0, 1, 2, ...)), built for a free batch size; "y" is the layer's output.

    batch_axes: input -> its batch axis. also: further values of the graph to return.
    """
    axes = {"x": 0} if batch_axes is None else batch_axes
    batch = next(arrays[name].shape[axis] for name, axis in axes.items())
    graph = Graph([Value(name, _free(array, axes.get(name)), array.dtype) for name, array in arrays.items()])
    y = layer(graph)
    measure(graph)
    graph.add_input(Value("probe", graph.shape(y)))
    loss = graph.op("ReduceSum", graph.op("Mul", y, "probe", shape=graph.shape(y)), keepdims=0, shape=())
    if lower(graph):
        measure(graph)
    gradients = differentiate(graph, loss, [name for name, array in arrays.items() if array.dtype == np.float32])
    names = [y, *also, *gradients.values()]
    graph.outputs = [Value(name, ()) for name in names]
    graph.prune()
    model = graph.to_model()
    for value in model.graph.output:
        value.ClearField("type")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shape = [batch if size == -1 else size for size in graph.shape(y)]
    found = session.run(names, {**arrays, "probe": probe(int(np.prod(shape))).reshape(shape)})
    return dict(zip(["y", *also, *gradients], found, strict=True))


def _free(array: np.ndarray, axis: int | None) -> tuple[int, ...]:
    return tuple(-1 if i == axis else size for i, size in enumerate(array.shape))


def probe(size: int) -> np.ndarray:
    """Fixed weights of the outputs, none of them equal."""
    return np.cos(np.arange(size, dtype=np.float32))


def torch_gradients(layer: Callable[..., torch.Tensor], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same gradients from torch in double precision."""
    tensors = {
        name: torch.tensor(array, dtype=torch.float64).requires_grad_()
        if array.dtype == np.float32
        else torch.tensor(array)
        for name, array in arrays.items()
    }
    y = layer(**tensors)
    weights = torch.tensor(probe(y.numel()), dtype=torch.float64)
    (y.reshape(-1) * weights).sum().backward()
    found = {"y": y.detach().numpy()}
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            found[name] = np.zeros_like(arrays[name]) if tensor.grad is None else tensor.grad.numpy()
    return found


def relative_error(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Distance over all tensors of `wanted`, relative to their norm."""
    for name, array in wanted.items():
        assert found[name].shape == array.shape, f"{name} has shape {found[name].shape}, not {array.shape}"
    distance = sum(float(((found[name] - array) ** 2).sum()) for name, array in wanted.items())
    answer: float = (distance / sum(float((array**2).sum()) for array in wanted.values())) ** 0.5
    return answer
