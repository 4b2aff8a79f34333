"""A hand-made training graph: logits = x W + b, cross-entropy, SGD with momentum on W."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fedwright.protocol.artifact import FORMAT, Artifact, Manifest, Slot, TensorSpec, file_info

FEATURES, CLASSES, MOMENTUM = 3, 4, 0.9
_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64


def _value(name: str, shape: list[int | str], dtype: int = _FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _constants() -> list[onnx.TensorProto]:
    arrays: dict[str, NDArray[Any]] = {
        "momentum": np.array(MOMENTUM, np.float32),
        "depth": np.array([CLASSES], np.int64),
        "off_on": np.array([0, 1], np.float32),
        "minus": np.array(-1, np.float32),
        "zero": np.array([0], np.int64),
        "last": np.array([1], np.int64),
    }
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def train_model(
    nodes_extra: list[onnx.NodeProto] | tuple[Any, ...] = (),
    inputs_extra: list[onnx.ValueInfoProto] | tuple[Any, ...] = (),
    opset_extra: list[onnx.OperatorSetIdProto] | tuple[Any, ...] = (),
    ir_version: int = 8,
    opset: int = 17,
) -> onnx.ModelProto:
    """The training graph, open to additions that make it bad."""
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "W", "b"], ["logits"]),
        node("LogSoftmax", ["logits"], ["logp"], axis=1),
        node("Softmax", ["logits"], ["p"], axis=1),
        node("OneHot", ["y", "depth", "off_on"], ["hot"], axis=1),
        node("Mul", ["logp", "hot"], ["picked"]),
        node("ReduceSum", ["picked", "last"], ["per_sample"], keepdims=0),
        node("ReduceMean", ["per_sample"], ["mean"], axes=[0], keepdims=0),
        node("Mul", ["mean", "minus"], ["loss"]),
        node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0),
        node("Equal", ["best", "y"], ["right"]),
        node("Cast", ["right"], ["right_f"], to=_FLOAT),
        node("ReduceSum", ["right_f", "zero"], ["correct"], keepdims=0),
        node("Sub", ["p", "hot"], ["diff"]),
        node("Shape", ["y"], ["n_i"]),
        node("Cast", ["n_i"], ["n"], to=_FLOAT),
        node("Div", ["diff", "n"], ["dlogits"]),
        node("Gemm", ["x", "dlogits"], ["dW"], transA=1),
        node("ReduceSum", ["dlogits", "zero"], ["db"], keepdims=0),
        node("Mul", ["vW", "momentum"], ["vW_decayed"]),
        node("Add", ["vW_decayed", "dW"], ["vW_new"]),
        node("Mul", ["vW_new", "learning_rate"], ["stepW"]),
        node("Sub", ["W", "stepW"], ["W_new"]),
        node("Mul", ["db", "learning_rate"], ["stepb"]),
        node("Sub", ["b", "stepb"], ["b_new"]),
        *nodes_extra,
    ]
    inputs = [
        _value("x", ["B", FEATURES]),
        _value("y", ["B"], _INT),
        _value("W", [FEATURES, CLASSES]),
        _value("b", [CLASSES]),
        _value("vW", [FEATURES, CLASSES]),
        _value("learning_rate", []),
        *inputs_extra,
    ]
    outputs = [
        _value("loss", []),
        _value("correct", []),
        _value("W_new", [FEATURES, CLASSES]),
        _value("b_new", [CLASSES]),
        _value("vW_new", [FEATURES, CLASSES]),
    ]
    graph = helper.make_graph(nodes, "train", inputs, outputs, initializer=_constants())
    opsets = [helper.make_opsetid("", opset), *opset_extra]
    return helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)


def eval_model() -> onnx.ModelProto:
    """Logits and, as embedding, the input itself."""
    nodes = [helper.make_node("Gemm", ["x", "W", "b"], ["logits"]), helper.make_node("Identity", ["x"], ["embedding"])]
    inputs = [_value("x", ["B", FEATURES]), _value("W", [FEATURES, CLASSES]), _value("b", [CLASSES])]
    outputs = [_value("logits", ["B", CLASSES]), _value("embedding", ["B", FEATURES])]
    graph = helper.make_graph(nodes, "eval", inputs, outputs)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def make_artifact(train: bytes | None = None, evaluation: Any = None, **changes: Any) -> Artifact:
    """The tiny artifact; `train` and `changes` replace the graph and manifest fields."""
    train_bytes = train if train is not None else train_model().SerializeToString()
    eval_bytes = evaluation if evaluation is not None else eval_model().SerializeToString()
    fields = {
        "format": FORMAT,
        "opset": 17,
        "ir_version": 8,
        "files": {"train.onnx": file_info(train_bytes), "eval.onnx": file_info(eval_bytes)},
        "batch": [TensorSpec("x", [-1, FEATURES]), TensorSpec("y", [-1], "int64")],
        "slots": [
            Slot("W", "W_new", [FEATURES, CLASSES], "trainable"),
            Slot("b", "b_new", [CLASSES], "trainable"),
            Slot("vW", "vW_new", [FEATURES, CLASSES], "optimizer"),
        ],
        "scalars": [TensorSpec("learning_rate", [])],
        "loss": "loss",
        "metrics": ["correct"],
        "eval_batch": ["x"],
        "eval_slots": ["W", "b"],
        "logits": "logits",
        "embedding": "embedding",
        "classes": CLASSES,
    }
    return Artifact(Manifest(**{**fields, **changes}), train_bytes, eval_bytes)


def start_weights() -> dict[str, NDArray[Any]]:
    """Weights to begin from."""
    rng = np.random.default_rng(5)
    return {
        "W": rng.normal(size=(FEATURES, CLASSES)).astype(np.float32),
        "b": rng.normal(size=CLASSES).astype(np.float32),
    }
