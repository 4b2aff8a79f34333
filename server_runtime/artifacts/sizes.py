"""Shapes and types of every value of a model at a given batch size.

ONNX's own inference follows shapes that are computed inside a graph only by copying all it knows for every node (six
seconds for a ResNet-50). Here it runs without that, and the few whole numbers that shapes are made of are computed in
between, until nothing new is known.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

Shape = tuple[int, ...]
Sizes = dict[str, tuple[Shape, np.dtype[Any]]]
Numbers = dict[str, NDArray[Any]]

# Longer lists of numbers are no shapes.
_FEW = 64
_FIRST = (2, 3, 4)
_WHOLE = {onnx.TensorProto.INT64, onnx.TensorProto.INT32}


def sizes_at(model: onnx.ModelProto, *batches: int) -> list[Sizes]:
    """For each batch size, the shape and type of every value when all free dimensions are that.

    Sizes that grow evenly from a batch of two to three and four are taken to go on like that.
    """
    if len(batches) <= len(_FIRST):
        return [_inferred(model, batch) for batch in batches]
    seen = [_inferred(model, batch) for batch in _FIRST]
    two, three, four = seen
    if not two.keys() == three.keys() == four.keys() or not all(_even([of[name] for of in seen]) for name in two):
        return [_inferred(model, batch) for batch in batches]
    return [
        {
            name: (tuple([a + (b - a) * (batch - _FIRST[0]) for a, b in zip(shape, three[name][0], strict=True)]), kind)
            for name, (shape, kind) in two.items()
        }
        for batch in batches
    ]


def _even(seen: Sequence[tuple[Shape, np.dtype[Any]]]) -> bool:
    """Does each dimension grow as much from the second batch size to the third as it did before?"""
    (two, _), (three, _), (four, _) = seen
    if two == four:
        return two == three
    return len(two) == len(three) == len(four) and all(
        [b - a == c - b for a, b, c in zip(two, three, four, strict=True)]
    )


def _inferred(model: onnx.ModelProto, batch: int) -> Sizes:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = batch
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    del fixed.graph.value_info[:]
    while True:
        inferred = shape_inference.infer_shapes(fixed).graph
        if not _replace_numbers(fixed.graph, inferred):
            return _known(inferred, batch)


def _known(graph: onnx.GraphProto, batch: int) -> Sizes:
    """What inference found; a dimension that it could not tell counts as the batch's."""
    sizes = {item.name: (tuple(item.dims), _dtype(item.data_type)) for item in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            dims = tensor.shape.dim
            shape = tuple([dim.dim_value or (0 if dim.HasField("dim_value") else batch) for dim in dims])
            sizes[value.name] = shape, _dtype(tensor.elem_type)
    return sizes


@cache
def _dtype(kind: int) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(kind)


def _replace_numbers(graph: onnx.GraphProto, inferred: onnx.GraphProto) -> bool:
    """Turn nodes that make a few whole numbers out of known ones into constants; True if there were any."""
    shapes = _sure_shapes(inferred, {node.input[0] for node in graph.node if node.op_type in ("Shape", "Size")})
    numbers = {item.name: numpy_helper.to_array(item) for item in graph.initializer if _is_few(item)}
    kept, made = list[onnx.NodeProto](), Numbers()
    for node in graph.node:
        if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
            given = [np.broadcast_to(np.int64(0), shapes[node.input[0]])]
        elif node.input and all([name in numbers for name in node.input if name]) and node.op_type != "Scan":
            given = [numbers[name] for name in node.input if name]
        else:
            kept.append(node)
            continue
        found = dict(zip(node.output, _evaluated(node, given), strict=False))
        numbers |= {name: array for name, array in found.items() if array.size <= _FEW and array.dtype.kind in "iub"}
        made |= found
    if made:
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in made.items())
    return bool(made)


def _sure_shapes(graph: onnx.GraphProto, names: set[str]) -> dict[str, Shape]:
    """The shapes of these values, where inference knows every dimension."""
    found = {item.name: tuple(item.dims) for item in graph.initializer if item.name in names}
    for value in (*graph.input, *graph.value_info):
        tensor = value.type.tensor_type
        if value.name in names and tensor.HasField("shape"):
            dims = tuple([dim.dim_value for dim in tensor.shape.dim])
            if all(dims):
                found[value.name] = dims
    return found


def _is_few(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _WHOLE and int(np.prod(tensor.dims)) <= _FEW


def _evaluated(node: onnx.NodeProto, given: list[NDArray[Any]]) -> list[NDArray[Any]]:
    if node.op_type == "Size":
        return [np.array(given[0].size)]
    if node.op_type == "Shape" and not node.attribute:
        return [np.array(given[0].shape)]
    names = [name for name in node.input if name]
    return [np.asarray(v) for v in ReferenceEvaluator(node).run(None, dict(zip(names, given, strict=True)))]
