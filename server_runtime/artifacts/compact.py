"""A finished model in fewer bytes: constants that a device can compute are computed there, nodes lose their names.

A session folds what is computed from constants when it is made, so that steps cost the same.
"""

from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from fedwright.protocol.artifact import AGAIN
from fedwright.server_runtime.artifacts.autodiff.graph import OPSET

Array = NDArray[Any]
Recipe = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]

# A node takes some forty bytes itself, and a shape eight for each axis.
LEAST_BYTES = 160
_SAVING = 0.8
# Lists whose default the schemas only tell in words: this number everywhere.
_OF_WINDOWS = {"strides": 1, "dilations": 1, "pads": 0}
_WINDOWED = {
    "Conv": _OF_WINDOWS,
    "ConvTranspose": {**_OF_WINDOWS, "output_padding": 0},
    "MaxPool": _OF_WINDOWS,
    "AveragePool": {"strides": 1, "pads": 0},
}


def compact(model: onnx.ModelProto) -> bytes:
    """The serialised model; it computes bit by bit what it did."""
    graph = model.graph
    taken = {name for node in graph.node for name in [*node.input, *node.output]}
    fresh = (name for name in map(str, count()) if name not in taken)
    kept, made = list[onnx.TensorProto](), list[onnx.NodeProto]()
    for tensor in graph.initializer:
        nodes, tensors = _recipe(tensor, fresh)
        kept += tensors
        made += nodes
    del graph.initializer[:]
    graph.initializer.extend(kept)
    nodes = [*made, *graph.node]
    for node in nodes:
        # A device reads of its name that a node makes a value again.
        if not node.name.startswith(f"{AGAIN}/"):
            node.ClearField("name")
        _drop_defaults(node)
    del graph.node[:]
    graph.node.extend(nodes)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _drop_defaults(node: onnx.NodeProto) -> None:
    """Attributes that say what holds without them."""
    kept = [item for item in node.attribute if not _is_default(node.op_type, item)]
    if len(kept) < len(node.attribute):
        del node.attribute[:]
        node.attribute.extend(kept)


def _is_default(operator: str, item: onnx.AttributeProto) -> bool:
    if operator in _WINDOWED and item.name in _WINDOWED[operator]:
        return set(item.ints) <= {_WINDOWED[operator][item.name]}
    default = _defaults(operator).get(item.name)
    return default is not None and helper.get_attribute_value(default) == helper.get_attribute_value(item)


@cache
def _defaults(operator: str) -> dict[str, onnx.AttributeProto]:
    """The attributes of an operator that have a default."""
    attributes = onnx.defs.get_schema(operator, OPSET).attributes
    return {name: item.default_value for name, item in attributes.items() if item.default_value.type}


def _recipe(tensor: onnx.TensorProto, fresh: Iterator[str]) -> Recipe:
    """Nodes and smaller constants that make this one; itself where that saves little."""
    whole: Recipe = ([], [tensor])
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return whole
    array = numpy_helper.to_array(tensor)
    if array.nbytes < LEAST_BYTES or array.dtype.kind not in "fi":
        return whole
    small = _once(array)
    tensors, nodes = _narrow(small, tensor.name if small.shape == array.shape else next(fresh), fresh)
    if small.shape != array.shape:
        shape = numpy_helper.from_array(np.array(array.shape, np.int64), next(fresh))
        source = nodes[-1].output[0] if nodes else tensors[0].name
        tensors.append(shape)
        nodes.append(helper.make_node("Expand", [source, shape.name], [tensor.name]))
    spent = sum(node.ByteSize() for node in nodes) + sum(item.ByteSize() for item in tensors)
    return (nodes, tensors) if spent < _SAVING * tensor.ByteSize() else whole


def _once(array: Array) -> Array:
    """The array without repetitions along its axes."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if array.shape[axis] > 1 and _same(np.broadcast_to(first, array.shape), array):
            array = first
    return array


def _narrow(array: Array, name: str, fresh: Iterator[str]) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    """A constant of that name, by a cast from a narrower type or by a choice between two numbers."""
    for dtype in (np.dtype(np.int8), np.dtype(np.int32)):
        if dtype.itemsize < array.itemsize and _same(_cast(array, dtype).astype(array.dtype), array):
            given = numpy_helper.from_array(_cast(array, dtype), next(fresh))
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return [given], [helper.make_node("Cast", [given.name], [name], to=kind)]
    values = np.unique(array)
    if len(values) == 2 and _same(np.where(array == values[1], values[1], values[0]), array):
        parts = [array == values[1], values[1], values[0]]
        given_parts = [numpy_helper.from_array(np.asarray(part), next(fresh)) for part in parts]
        return given_parts, [helper.make_node("Where", [part.name for part in given_parts], [name])]
    return [numpy_helper.from_array(array, name)], []


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(invalid="ignore"):
        return array.astype(dtype)


def _same(one: Array, other: Array) -> bool:
    """Equal bit by bit, so that not even the sign of a zero is lost."""
    return one.tobytes() == other.tobytes()
