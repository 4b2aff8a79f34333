"""Shapes by running: the forward graph runs at two batch sizes, and a dimension that differs is the batch's."""

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.artifacts.autodiff.graph import Array, Graph, Shape, Value

_BATCHES = (2, 3)
_SILENT = 4
_ORT_ERRORS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)


@dataclass(frozen=True)
class Seen:
    """What two runs showed of a value."""

    first: Array
    second: Array

    @property
    def fixed(self) -> bool:
        """Were both runs equal?"""
        return self.first.shape == self.second.shape and bool(np.array_equal(self.first, self.second))


def measure(graph: Graph) -> dict[str, Seen]:
    """Record the shape and type of every value of the graph and return what was seen."""
    names = [name for node in graph.nodes for name in node.outputs if name]
    if not names:
        return {}
    kept = graph.outputs
    graph.outputs = []
    model = graph.to_model()
    graph.outputs = kept
    for name in names:
        model.graph.output.add().name = name
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = _SILENT
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = [_zeros(graph.inputs, batch) for batch in _BATCHES]
        runs = [session.run(names, feed) for feed in feeds]
    except _ORT_ERRORS as err:
        raise BuildError(f"the exported graph does not run: {_first_line(err)}; simplify the model") from err
    seen = {name: Seen(np.asarray(a), np.asarray(b)) for name, a, b in zip(names, *runs, strict=True)}
    for name, both in seen.items():
        graph.record(name, _shape(name, both), both.first.dtype)
    return seen | {value.name: Seen(feeds[0][value.name], feeds[1][value.name]) for value in graph.inputs}


def _zeros(inputs: list[Value], batch: int) -> dict[str, Array]:
    free = {label: batch + 5 * i for i, label in enumerate(dict.fromkeys(["batch", *(v.free for v in inputs)]))}
    return {v.name: np.zeros([free[v.free] if dim == -1 else dim for dim in v.shape], v.dtype) for v in inputs}


def _shape(name: str, seen: Seen) -> Shape:
    if seen.first.ndim != seen.second.ndim:
        raise BuildError(f"value {name} changes its number of dimensions with the batch size; give it a fixed one")
    return tuple(a if a == b else -1 for a, b in zip(seen.first.shape, seen.second.shape, strict=True))


def _first_line(err: Exception) -> str:
    return str(err).splitlines()[0][:300] if str(err) else type(err).__name__
