"""The edges of a graph say which samples stand where: nothing that is made of them picks one out."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fedwright.protocol.artifact import FORMAT, Manifest, Slot, TensorSpec
from fedwright.protocol.dataflow.outputs import check_train_outputs
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import scan

N = helper.make_node
WIDTH, NODES = 3, 4
MANIFEST = Manifest(
    format=FORMAT,
    opset=18,
    ir_version=10,
    files={},
    batch=[TensorSpec("x", [-1, WIDTH]), TensorSpec("y", [-1], "int64"), TensorSpec("edges", [-1, 2], "int64")],
    slots=[Slot("w", "next/w", [NODES, WIDTH], "buffer")],
    scalars=[],
    sides=[],
    loss="loss",
    metrics=[],
    eval_batch=["x", "edges"],
    eval_slots=["w"],
    logits="logits",
    embedding="embedding",
    classes=2,
)
CONSTANTS = {
    "n0": np.int64(0),
    "n1": np.int64(1),
    "i0": np.array([0]),
    "i1": np.array([1]),
    "pair": np.array([2, -1]),
    "depth": np.int64(NODES),
    "off_on": np.array([0, 1], np.float32),
    "table": np.zeros((NODES, WIDTH), np.float32),
}
ENDS = [
    N("Gather", ["edges", "n0"], ["from"], axis=1),
    N("Gather", ["edges", "n1"], ["to"], axis=1),
    N("Gather", ["x", "to"], ["message"], axis=0),
]
SUMMED = N("ReduceSum", ["picked", "i0"], ["out"], keepdims=0)


def weighed(weights: str) -> list[onnx.NodeProto]:
    """What comes along the edges, times a number for each of them, summed."""
    return [N("Unsqueeze", [weights, "i1"], ["column"]), N("Mul", ["column", "message"], ["picked"]), SUMMED]


def fetched(index: str) -> list[onnx.NodeProto]:
    """The sum of the samples at places."""
    return [N("Gather", ["x", index], ["picked"], axis=0), SUMMED]


ATTACKS = {
    "the edges": [N("Cast", ["edges"], ["out"], to=TensorProto.FLOAT)],
    "a sum of places": [
        N("Cast", ["from"], ["f"], to=TensorProto.FLOAT),
        N("ReduceSum", ["f", "i0"], ["out"], keepdims=0),
    ],
    "the first place": [N("ReduceMin", ["from", "i0"], ["out"], keepdims=0)],
    "the neighbours of one node": [
        N("Equal", ["from", "n0"], ["is_first"]),
        N("Cast", ["is_first"], ["f"], to=TensorProto.FLOAT),
        *weighed("f"),
    ],
    "weights by place": [N("Cast", ["from"], ["f"], to=TensorProto.FLOAT), *weighed("f")],
    "a row of a table for each node": [
        N("OneHot", ["from", "depth", "off_on"], ["hot"]),
        N("Transpose", ["hot"], ["turned"], perm=[1, 0]),
        N("MatMul", ["turned", "message"], ["out"]),
    ],
    "a parameter for each node": [
        N("Gather", ["w", "from"], ["own"], axis=0),
        N("Mul", ["own", "message"], ["picked"]),
        SUMMED,
    ],
    "which parameters nodes take": [N("Gather", ["w", "from"], ["out"], axis=0)],
    "messages put into a table": [
        N("Unsqueeze", ["from", "i1"], ["column"]),
        N("Expand", ["column", "pair"], ["wide"]),
        N("ScatterElements", ["table", "wide", "message"], ["out"], axis=0, reduction="add"),
    ],
    "edges in one direction": [
        N("Greater", ["from", "to"], ["up"]),
        N("Cast", ["up"], ["f"], to=TensorProto.FLOAT),
        *weighed("f"),
    ],
    "the largest message": [N("ReduceMax", ["message", "i0"], ["out"], keepdims=0)],
    "the first edge alone": [
        N("Slice", ["edges", "i0", "i1", "i0"], ["first"]),
        N("Gather", ["first", "n0"], ["place"], axis=1),
        *fetched("place"),
    ],
    "places times nothing": [N("Mul", ["from", "n0"], ["place"]), *fetched("place")],
    "places of one more": [N("Add", ["from", "n1"], ["place"]), *fetched("place")],
    "the smaller of a place and a constant": [N("Min", ["from", "n0"], ["place"]), *fetched("place")],
    "places held to one": [N("Clip", ["from", "n0", "n0"], ["place"]), *fetched("place")],
    "edges of edges": [N("Gather", ["from", "from"], ["place"], axis=0), *fetched("place")],
    "edges by label": [
        N("Gather", ["edges", "y"], ["some"], axis=0),
        N("Gather", ["some", "n0"], ["place"], axis=1),
        *fetched("place"),
    ],
    "edges in another shape": [N("Reshape", ["edges", "pair"], ["place"]), *fetched("place")],
}


def check(nodes: Sequence[onnx.NodeProto]) -> None:
    """Check a graph with one output."""
    inputs = [
        helper.make_tensor_value_info(
            spec.name,
            TensorProto.INT64 if spec.dtype == "int64" else TensorProto.FLOAT,
            [None if size < 0 else size for size in spec.shape],
        )
        for spec in (*MANIFEST.batch, TensorSpec("w", [NODES, WIDTH]))
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph([*ENDS, *nodes], "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    check_train_outputs(scan(model.SerializeToString(), what="train.onnx"), MANIFEST, "train.onnx")


@pytest.mark.parametrize("nodes", ATTACKS.values(), ids=ATTACKS)
def test_edges_pick_no_sample_out(nodes: list[onnx.NodeProto]) -> None:
    with pytest.raises(BadArtifact, match=r"train.onnx output 'out' would carry single samples off this device"):
        check(nodes)


def test_what_comes_along_all_edges_may_be_summed() -> None:
    check([N("ReduceSum", ["message", "i0"], ["out"], keepdims=0)])
