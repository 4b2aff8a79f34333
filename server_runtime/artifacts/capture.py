"""The one place that chooses how a torch module becomes a graph.

torch.export follows most modules. Tracing, which torch will give up, has a try at what torch.export does not follow, at
operators that are not written for it yet, and at graphs that do not run.
"""

import copy
import logging

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.autodiff.shapes import Seen, measure
from fedwright.server_runtime.artifacts.captured.program import Aliased, captured
from fedwright.server_runtime.artifacts.module_tensors import state_tensors
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured
from fedwright.server_runtime.artifacts.traced import parse, traced
from fedwright.server_runtime.artifacts.trial import check_runs
from fedwright.server_runtime.zoo.onnx_module import OnnxModule

_log = logging.getLogger(__name__)
_EXAMPLES = 2
_EDGES = 3
_CLOSE = 1e-3


def capture(module: nn.Module, inputs: tuple[Value, ...], *, checked: bool = True) -> tuple[Graph, dict[str, Seen]]:
    """The graph of a module whose weights are inputs by their names, and what two runs of it showed.

    checked: raise BuildError where the module takes another way with other data.
    """
    if isinstance(module, OnnxModule):
        graph = parse(module.traced(), inputs, module)
        return graph, measure(graph)
    examples = _examples(inputs)
    reads = check_runs(module, examples) if checked else []
    doubtful = False
    try:
        graph = captured(module, inputs, examples, reads)
        return graph, measure(graph)
    except (Uncaptured, BuildError) as err:
        doubtful = isinstance(err, Aliased)
        _log.debug("%s is traced, not exported: %s", type(module).__name__, err)
    graph = traced(module, inputs, examples)
    if doubtful:
        _check_alike(module, graph)
    return graph, measure(graph)


def _check_alike(module: nn.Module, graph: Graph) -> None:
    """Raise BuildError when the graph says something else than the module, as it may where values change in place."""
    rng = np.random.default_rng(0)
    twin = copy.deepcopy(module)
    state = state_tensors(twin)
    with torch.no_grad():
        for tensor in state.values():
            tensor.copy_(torch.from_numpy(rng.uniform(0.1, 1.0, tuple(tensor.shape))))
    feeds = {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
    for value in graph.inputs:
        if value.name not in feeds:
            shape = [_EXAMPLES if size == -1 else size for size in value.shape]
            feeds[value.name] = rng.uniform(0, 1, shape).astype(value.dtype)
    batch = [torch.from_numpy(feeds[value.name]) for value in graph.inputs if value.name not in state]
    with torch.no_grad():
        wanted, again = (copy.deepcopy(twin)(*(x.clone() for x in batch)) for _ in range(2))
    session = ort.InferenceSession(graph.to_model().SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run([value.name for value in graph.outputs], {v.name: feeds[v.name] for v in graph.inputs})
    first, second = (torch.as_tensor(x[0] if isinstance(x, tuple) else x) for x in (wanted, again))
    if torch.equal(first, second) and not np.allclose(found[0], first.numpy(), rtol=_CLOSE, atol=_CLOSE):
        raise BuildError(
            f"{type(module).__name__} changes a value in place of which it reads other parts later, and tracing gets "
            "that wrong; write it without changes in place, such as x = x * 2 instead of x.mul_(2)"
        )


def _examples(inputs: tuple[Value, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(_example(value) for value in inputs)


def _example(value: Value) -> torch.Tensor:
    size = _EXAMPLES if value.free == "batch" else _EDGES
    return torch.from_numpy(np.zeros([size if dim == -1 else dim for dim in value.shape], value.dtype))
