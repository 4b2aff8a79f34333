"""Gradient of Resize: every mode is a linear map along each axis, so dx is dy times the transposed maps."""

from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import IR_VERSION, OPSET, Array, Node
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only

_LINEAR_MODES = ("nearest", "linear", "cubic")


@rule("Resize")
def resize(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Whole multiples of the nearest value are sums over windows; all else are products with the axis' own map."""
    x, y = node.inputs[0], node.outputs[0]
    before, after = ctx.shape(x), ctx.shape(y)
    axes = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if node.attrs.get("mode", "nearest") not in _LINEAR_MODES or any(-1 in (before[i], after[i]) for i in axes):
        raise UnsupportedOperator(f"Resize of a free size or mode {node.attrs.get('mode')}", node.name, node.module)
    dy = only(grads)
    if _repeats(node, before, after):
        return [_window_sums(ctx, dy, before, after)]
    for axis in axes:
        forward = _map(_settings(node), before[axis], after[axis], _scale(ctx, node, axis))
        dy = _along(ctx, dy, np.ascontiguousarray(forward.T), axis=axis, rank=len(before))
    return [dy]


def _repeats(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Is every value repeated the same whole number of times along the last two axes of an image?"""
    if node.attrs.get("mode", "nearest") != "nearest" or len(before) != 4 or before[:2] != after[:2]:
        return False
    plain = node.attrs.get("coordinate_transformation_mode", "half_pixel") in ("asymmetric", "half_pixel")
    floor = node.attrs.get("nearest_mode", "round_prefer_floor") == "floor"
    return plain and floor and all(b % a == 0 for a, b in zip(before[2:], after[2:], strict=True))


def _window_sums(ctx: Backward, dy: str, before: tuple[int, ...], after: tuple[int, ...]) -> str:
    kernel = [b // a for a, b in zip(before[2:], after[2:], strict=True)]
    means = ctx.graph.op("AveragePool", dy, kernel_shape=kernel, strides=kernel)
    return ctx.graph.op("Mul", means, ctx.graph.scalar(float(np.prod(kernel))))


def _settings(node: Node) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(node.attrs.items()))


def _scale(ctx: Backward, node: Node, axis: int) -> float | None:
    """The scale that stands in the node; with sizes instead, the runtime divides them."""
    scales = ctx.const_value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    return None if scales is None or scales.size == 0 else float(scales[axis])


@cache
def _map(settings: tuple[tuple[str, Any], ...], size: int, result: int, scale: float | None) -> Array:
    """[size, result]: what the runtime makes of each unit vector."""
    given = ["x", "", "scales"] if scale is not None else ["x", "", "", "sizes"]
    node = helper.make_node("Resize", given, ["y"], **dict(settings))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size, 1, size])
    constants = [
        helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 1.0, scale])
        if scale is not None
        else helper.make_tensor("sizes", TensorProto.INT64, [4], [1, size, 1, result])
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "map", [image], [output], constants)
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    units = np.eye(size, dtype=np.float32).reshape(1, size, 1, size)
    found: Array = np.asarray(session.run(["y"], {"x": units})[0])
    return found.reshape(size, result)


def _along(ctx: Backward, value: str, matrix: Array, *, axis: int, rank: int) -> str:
    """value @ matrix along one axis; the last two axes need no transposing."""
    g = ctx.graph
    if axis == rank - 1:
        return g.op("MatMul", value, g.constant(matrix))
    if axis == rank - 2:
        return g.op("MatMul", g.constant(np.ascontiguousarray(matrix.T)), value)
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    product = g.op("MatMul", g.op("Transpose", value, perm=swap), g.constant(matrix))
    return g.op("Transpose", product, perm=swap)
