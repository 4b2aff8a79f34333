"""How much memory a step needs, from the life of every value in execution order."""

import math

import numpy as np
import onnx
from onnx import shape_inference

from fedwright.server_runtime.artifacts.autodiff.graph import Graph

_SMALL, _LARGE = 1, 33
_COPIES = 2


def estimate(graph: Graph) -> tuple[int, int]:
    """(fixed bytes, bytes per example) of one step.

    Fixed: inputs and outputs that are state (held twice, read and written) and frozen weights. The peak of live
    values is found at two batch sizes; the line through them gives the share of each example.
    """
    model = shape_inference.infer_shapes(graph.to_model(), data_prop=True)
    dims = {item.name: _dims(item) for item in [*model.graph.value_info, *model.graph.output]}
    low, high = (_peak(graph, dims, batch) for batch in (_SMALL, _LARGE))
    per_sample = max(0, (high - low) // (_LARGE - _SMALL))
    held = sum(_bytes(v.shape, v.dtype, 1) for v in graph.inputs if -1 not in v.shape)
    held += sum(_bytes(v.shape, v.dtype, 1) for v in graph.outputs if -1 not in v.shape)
    held += sum(_bytes(v.shape, v.dtype, 1) for v in graph.external.values())
    held += sum(array.nbytes for array in graph.initializers.values())
    return held + max(0, low - per_sample), per_sample


def _dims(item: onnx.ValueInfoProto) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    tensor = item.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)


def _bytes(shape: tuple[int, ...], dtype: np.dtype[np.generic], batch: int) -> int:
    return math.prod(batch if dim == -1 else dim for dim in shape) * dtype.itemsize


def _peak(graph: Graph, dims: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]], batch: int) -> int:
    """Largest sum of live intermediate values when the nodes run in order."""
    outputs = {value.name for value in graph.outputs}
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    live: dict[str, int] = {}
    now = peak = 0
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name and name not in outputs:
                shape, dtype = dims.get(name) or (
                    (graph.shape(name), graph.dtype(name)) if graph.knows(name) else ((), np.dtype(np.float32))
                )
                live[name] = _bytes(shape, dtype, batch)
                now += live[name]
        peak = max(peak, now)
        for name in node.inputs:
            if last[name] == index and name in live:
                now -= live.pop(name)
    return peak
