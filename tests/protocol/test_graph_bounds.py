"""Shapes that a graph computes are followed: what onnxruntime makes of a graph is what its bounds say."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from fedwright.protocol.onnx_outline import scan

BATCH = 6
NUMBERS = {"two": [2], "three": [3], "zero": [0], "pair": [4, 5], "minus": [-1], "one": [1], "wide": [7]}

# Nodes that make `size`, whole numbers, out of the batch [6, 3]; the shape that they make.
SIZES: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], list[int]]] = {
    "shape": ([("Shape", ["x"], {})], [6, 3]),
    "shape from 1": ([("Shape", ["x"], {"start": 1})], [3]),
    "size": ([("Size", ["x"], {}), ("Unsqueeze", ["size0", "zero"], {})], [18]),
    "product": ([("Shape", ["x"], {}), ("ReduceProd", ["size0"], {"keepdims": 1})], [18]),
    "times": ([("Shape", ["x"], {}), ("Mul", ["size0", "pair"], {})], [24, 15]),
    "over": ([("Shape", ["x"], {}), ("Div", ["size0", "two"], {})], [3, 1]),
    "less": ([("Shape", ["x"], {}), ("Sub", ["size0", "one"], {})], [5, 2]),
    "picked": ([("Shape", ["x"], {}), ("Gather", ["size0", "one"], {"axis": 0})], [3]),
    "cut": ([("Shape", ["x"], {}), ("Slice", ["size0", "one", "two"], {})], [3]),
    "joined": ([("Shape", ["x"], {}), ("Concat", ["size0", "wide"], {"axis": 0})], [6, 3, 7]),
    "cast": ([("Shape", ["x"], {}), ("Cast", ["size0"], {"to": TensorProto.INT64})], [6, 3]),
    "largest": ([("Shape", ["x"], {}), ("Max", ["size0", "pair"], {})], [6, 5]),
}
# Nodes that make `made`, and its shape.
MADE: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], list[int]]] = {
    "reshaped": ([("Reshape", ["x", "minus"], {})], [18]),
    "product": ([("MatMul", ["column", "row"], {})], [300, 400]),
    "turned": ([("Gemm", ["column", "row"], {"transA": 0, "transB": 0})], [300, 400]),
    "stretched": ([("Add", ["column", "row"], {})], [300, 400]),
    "tiled": ([("Tile", ["x", "pair"], {})], [24, 15]),
}


def outline_and_result(nodes: list[tuple[str, list[str], dict[str, Any]]], last: Any = None) -> tuple[Any, Any]:
    """What the bounds say and what a run makes."""
    made = [
        helper.make_node(operator, given, [f"size{at}"], **attributes)
        for at, (operator, given, attributes) in enumerate(nodes)
    ]
    made[-1].output[0] = "made" if last is None else "size"
    if last is not None:
        made.append(last)
    arrays = {name: np.array(value, np.int64) for name, value in NUMBERS.items()}
    arrays |= {"column": np.ones((300, 1), np.float32), "row": np.ones((1, 400), np.float32)}
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3])],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones((BATCH, 3), np.float32)})
    return scan(model, what="g", batch=BATCH), result


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_computed_is_known(name: str) -> None:
    nodes, shape = SIZES[name]
    outline, result = outline_and_result(nodes, helper.make_node("ConstantOfShape", ["size"], ["made"]))

    assert list(result.shape) == shape
    assert outline.most_entries == max(result.size, BATCH * 3 if name == "cast" else 0)


@pytest.mark.parametrize("name", MADE)
def test_a_shape_that_follows_from_others_is_known(name: str) -> None:
    nodes, shape = MADE[name]
    outline, result = outline_and_result(nodes)

    assert list(result.shape) == shape
    assert outline.most_entries == result.size


def test_what_cannot_be_known_or_is_nonsense_is_left_to_the_run() -> None:
    made = [
        helper.make_node("Shape", ["x"], ["size0"]),
        helper.make_node("Div", ["size0", "zero"], ["size1"]),
        helper.make_node("ConstantOfShape", ["size1"], ["made"]),
    ]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3])],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.zeros(1, np.int64), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    assert scan(model.SerializeToString(), what="g", batch=BATCH).most_entries == 0
