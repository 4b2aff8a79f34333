"""ONNX files as other tools write them, made here by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

CLASSES = 10


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    tensors: dict[str, NDArray[Any]],
    *,
    batch: int | str = "n",
    **more: Any,
) -> str:
    """Write a graph from `image` [batch, 1, 8, 8] to `out`; the model's name for a config."""
    kind, opset, outputs = more.get("kind", onnx.TensorProto.FLOAT), more.get("opset", 17), more.get("outputs", ["out"])
    shape = more.get("shape", [1, 8, 8])
    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info("image", kind, [batch, *shape])],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in more.get("domains", ()))]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return f"onnx:{path}"


def small_nodes(axes_as_input: bool = False, batch: int = -1) -> list[onnx.NodeProto]:
    """A normalised convolution, a mean over the map and a classifier that ends with probabilities."""
    mean = helper.make_node("ReduceMean", ["active", "axes"] if axes_as_input else ["active"], ["pooled"], keepdims=1)
    if not axes_as_input:
        mean.attribute.append(helper.make_attribute("axes", [2, 3]))
    return [
        helper.make_node("Conv", ["image", "conv/kernel:0"], ["mapped"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["mapped", "bn/scale", "bn/offset", "bn/mean", "bn/var"], ["normed"]),
        helper.make_node("Relu", ["normed"], ["active"]),
        mean,
        helper.make_node("Constant", [], ["flat"], value_ints=[batch, 8]),
        helper.make_node("Reshape", ["pooled", "flat"], ["rows"]),
        helper.make_node("Gemm", ["rows", "dense/kernel:0", "dense/bias:0"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["out"], axis=-1),
    ]


def small_tensors(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Its weights."""
    rng = np.random.default_rng(seed)
    drawn = {"conv/kernel:0": (8, 1, 3, 3), "dense/kernel:0": (8, CLASSES), "dense/bias:0": (CLASSES,)}
    weights = {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in drawn.items()}
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    return {**weights, "bn/scale": ones, "bn/offset": zeros, "bn/mean": zeros + 0, "bn/var": ones + 0}


def small(path: Path, **more: Any) -> str:
    """The small classifier as a file."""
    return save(path, small_nodes(), small_tensors(), **more)
