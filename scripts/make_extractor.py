"""The frozen extractor behind descriptors as inference graphs; `write` makes the files that the package carries.

Run `python scripts/make_extractor.py` after a change. The weights are inputs, because their shapes depend on a
device's data; every device draws the same ones from the same seed.
"""

from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper

from fedwright.device_runtime.describe.descriptor import GRAPHS, LAYERS, SIZE

OPSET, IR_VERSION = 17, 8


def image() -> ModelProto:
    """Three random 3×3 convolutions with stride 2 and ReLU, then the mean over places."""
    nodes, value = [], "x"
    for number in range(1, len(LAYERS) + 1):
        made = f"conv{number}"
        nodes.append(helper.make_node("Conv", [value, f"w{number}"], [made], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [made], [f"relu{number}"]))
        value = f"relu{number}"
    nodes.append(helper.make_node("ReduceMean", [value], ["features"], axes=[2, 3], keepdims=0))
    weights = [_float(f"w{n}", [width, f"c{n}", 3, 3]) for n, width in enumerate(LAYERS, start=1)]
    return _model("image", nodes, [_float("x", ["n", "c", "h", "w"]), *weights])


def flat() -> ModelProto:
    """Two random layers with ReLU."""
    return _model("flat", _dense("x"), [_float("x", ["n", "d"]), _float("w1", ["d", SIZE]), _float("w2", [SIZE, SIZE])])


def words() -> ModelProto:
    """The mean random vector of the words, then two random layers."""
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["vectors"]),
        helper.make_node("ReduceMean", ["vectors"], ["mean"], axes=[1], keepdims=0),
        *_dense("mean"),
    ]
    ids = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", "t"])
    return _model(
        "words", nodes, [ids, _float("table", ["v", SIZE]), _float("w1", [SIZE, SIZE]), _float("w2", [SIZE, SIZE])]
    )


def _dense(source: str) -> list[NodeProto]:
    return [
        helper.make_node("MatMul", [source, "w1"], ["dense1"]),
        helper.make_node("Relu", ["dense1"], ["relu1"]),
        helper.make_node("MatMul", ["relu1", "w2"], ["dense2"]),
        helper.make_node("Relu", ["dense2"], ["features"]),
    ]


def _float(name: str, shape: Sequence[str | int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(name: str, nodes: list[NodeProto], inputs: list[ValueInfoProto]) -> ModelProto:
    graph = helper.make_graph(nodes, name, inputs, [_float("features", ["n", SIZE])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    checker.check_model(model)
    return model


def graphs() -> dict[str, bytes]:
    """The content of every file."""
    return {model.graph.name: model.SerializeToString(deterministic=True) for model in (image(), flat(), words())}


def write(folder: Path) -> None:
    """Write the files that devices read."""
    for name, data in graphs().items():
        (folder / f"{name}.onnx").write_bytes(data)


if __name__ == "__main__":
    write(Path(str(GRAPHS)))
