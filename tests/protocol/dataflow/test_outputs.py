"""Graphs that would carry single samples off a device, each by another trick, beside what training needs."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fedwright.protocol.artifact import FORMAT, Manifest, Slot, TensorSpec
from fedwright.protocol.dataflow.outputs import check_eval_outputs, check_train_outputs
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import Outline, scan

N = helper.make_node
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
BATCH, WIDTH = 8, 4
MANIFEST = Manifest(
    format=FORMAT,
    opset=18,
    ir_version=10,
    files={},
    batch=[TensorSpec("x", [-1, WIDTH]), TensorSpec("y", [-1], "int64")],
    slots=[Slot("w", "next/w", [BATCH, WIDTH], "buffer"), Slot("m", "next/m", [WIDTH], "optimizer")],
    scalars=[TensorSpec("learning_rate", []), TensorSpec("seed", [], "int64")],
    sides=[TensorSpec("chosen", [BATCH, 1]), TensorSpec("any", [-1, 1])],
    loss="loss",
    metrics=[],
    eval_batch=["x"],
    eval_slots=["w"],
    logits="logits",
    embedding="embedding",
    classes=3,
)
CONSTANTS = {
    "first": np.eye(BATCH, dtype=np.float32)[:, :1],
    "row": np.eye(BATCH, dtype=np.float32)[:1],
    "ones": np.ones((1, BATCH), np.float32),
    "i0": np.array([0]),
    "i1": np.array([1]),
    "n0": np.array(0),
    "n1": np.array(1),
    "n2": np.array(2),
    "one": np.array(1.0, np.float32),
    "shape": np.array([BATCH, WIDTH]),
    "wide": np.array([1, -1]),
    "flat": np.array([-1]),
    "halves": np.array([2, -1, WIDTH]),
    "pads": np.array([0, 0, 1, 0]),
    "on_off": np.array([0, 1], np.float32),
    "three": np.array([3]),
    "twice": np.array([2, 1]),
    "kernel": np.array([[[1, -1]]], np.float32),
    "spots": np.arange(BATCH)[:, None].repeat(WIDTH, axis=1),
    "roi": np.array([0, 0, 0.1, 1], np.float32),
    "scales": np.array([1, 1], np.float32),
    "big": np.array(1e9, np.float32),
    "gates": np.ones((1, 3, WIDTH), np.float32),
    "again": np.ones((1, 3, 1), np.float32),
    "stops": np.eye(BATCH, dtype=np.int32)[0],
    "begins": np.eye(BATCH, dtype=np.float32)[None, :, :1],
}


def outline(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> Outline:
    """A scanned graph with the inputs of the manifest; each output is of a shape that nobody looks at."""
    slots = [TensorSpec(slot.name, slot.shape, slot.dtype) for slot in MANIFEST.slots]
    specs = [*MANIFEST.batch, *slots, *MANIFEST.scalars, *MANIFEST.sides]
    inputs = [
        helper.make_tensor_value_info(
            spec.name, INT if spec.dtype == "int64" else FLOAT, [None if d < 0 else d for d in spec.shape]
        )
        for spec in specs
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        inputs,
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return scan(model.SerializeToString(), what="train.onnx")


def check(*nodes: onnx.NodeProto, output: str = "out") -> None:
    """Check a graph with one output of interest."""
    check_train_outputs(outline(nodes, [output]), MANIFEST, "train.onnx")


def masked(mask: str) -> list[onnx.NodeProto]:
    """The sum over the samples of x times a mask."""
    return [N("Mul", ["x", mask], ["picked"]), N("ReduceSum", ["picked", "i0"], ["out"], keepdims=0)]


POSITIONS = [
    N("Shape", ["x"], ["sizes"]),
    N("Gather", ["sizes", "n0"], ["count"]),
    N("Range", ["n0", "count", "n1"], ["places"]),
]

ATTACKS = {
    "a copy": [N("Identity", ["x"], ["out"])],
    "a copy of the labels": [N("Cast", ["y"], ["out"], to=FLOAT)],
    "a copy in the shape of a slot": [N("Reshape", ["x", "shape"], ["out"])],
    "one row": [N("Slice", ["x", "i0", "i1", "i0"], ["out"])],
    "one row, summed over its only entry": [
        N("Slice", ["x", "i0", "i1", "i0"], ["r"]),
        N("ReduceSum", ["r", "i0"], ["out"], keepdims=0),
    ],
    "one row by index": [N("Gather", ["x", "n0"], ["out"], axis=0)],
    "one row by a list of indices": [N("GatherND", ["x", "i0"], ["out"])],
    "rows by indices of entries": [N("GatherElements", ["x", "zero"], ["out"], axis=0)],
    "a constant mask": masked("first"),
    "a side input as a mask": masked("chosen"),
    "a side input of free length as a mask": masked("any"),
    "a parameter as a mask": masked("w"),
    "a mask by position": [
        *POSITIONS,
        N("Equal", ["places", "n0"], ["is_first"]),
        N("Cast", ["is_first"], ["mask1"], to=FLOAT),
        N("Unsqueeze", ["mask1", "i1"], ["mask"]),
        *masked("mask"),
    ],
    "a mask by running sums": [
        N("Shape", ["x"], ["sizes"]),
        N("ConstantOfShape", ["sizes"], ["zeros"]),
        N("Add", ["zeros", "one"], ["all_ones"]),
        N("CumSum", ["all_ones", "n0"], ["mask"]),
        *masked("mask"),
    ],
    "a mask by position in Where": [
        N("Cast", ["first"], ["choice"], to=TensorProto.BOOL),
        N("Where", ["choice", "x", "one"], ["picked"]),
        N("ReduceSum", ["picked", "i0"], ["out"], keepdims=0),
    ],
    "a product with a row of a unit matrix": [N("MatMul", ["row", "x"], ["out"])],
    "a product with constants of the batch's length": [N("MatMul", ["ones", "x"], ["out"])],
    "a product in Gemm": [N("Gemm", ["first", "x"], ["out"], transA=1)],
    "a product in Einsum": [N("Einsum", ["first", "x"], ["out"], equation="bi,bj->ij")],
    "a diagonal in Einsum": [N("MatMul", ["x", "xt"], ["square"]), N("Einsum", ["square"], ["out"], equation="ii->i")],
    "all pairs": [N("Transpose", ["x"], ["xt2"], perm=[1, 0]), N("MatMul", ["x", "xt2"], ["out"])],
    "the largest of the batch": [N("ReduceMax", ["x", "i0"], ["out"], keepdims=0)],
    "a product over the batch": [N("ReduceProd", ["x", "i0"], ["out"], keepdims=0)],
    "the best of the batch": [N("TopK", ["x", "i1"], ["out", "where"], axis=0)],
    "the place of the largest": [N("ArgMax", ["x"], ["out"], axis=0)],
    "softmax over the batch": [
        N("Mul", ["x", "big"], ["sharp"]),
        N("Softmax", ["sharp"], ["weights"], axis=0),
        N("Mul", ["weights", "x"], ["picked"]),
        N("ReduceSum", ["picked", "i0"], ["out"], keepdims=0),
    ],
    "the batch as one long row": [N("Reshape", ["x", "wide"], ["out"])],
    "the batch in halves, one of them summed": [
        N("Reshape", ["x", "halves"], ["h"]),
        N("ReduceSum", ["h", "i1"], ["out"], keepdims=0),
    ],
    "a margin of rows": [N("Pad", ["x", "pads"], ["p"]), N("ReduceSum", ["p", "i0"], ["out"], keepdims=0)],
    "rows behind a constant": [N("Concat", ["w", "x"], ["out"], axis=0)],
    "rows among a slot's": [N("ScatterElements", ["w", "zero", "x"], ["out"], axis=0)],
    "rows added to places by constants": [N("ScatterElements", ["w", "spots", "x"], ["out"], axis=0, reduction="add")],
    "a crop of the batch": [
        N("Resize", ["x", "roi", "scales"], ["r"], coordinate_transformation_mode="tf_crop_and_resize"),
        N("ReduceSum", ["r", "i0"], ["out"], keepdims=0),
    ],
    "rows parted": [N("Split", ["x"], ["out", "rest"], axis=0, num_outputs=2)],
    "rows twice": [N("Tile", ["x", "twice"], ["t"]), N("ReduceSum", ["t", "i0"], ["out"], keepdims=0)],
    "a window over the batch": [
        N("Transpose", ["x"], ["xt2"], perm=[1, 0]),
        N("Unsqueeze", ["xt2", "i1"], ["line"]),
        N("Conv", ["line", "kernel"], ["out"]),
    ],
    "pooled over the batch": [
        N("Transpose", ["x"], ["xt2"], perm=[1, 0]),
        N("Unsqueeze", ["xt2", "i1"], ["line"]),
        N("GlobalMaxPool", ["line"], ["out"]),
    ],
    "the lower half of a square": [
        N("Trilu", ["x"], ["half"]),
        N("ReduceSum", ["half", "i0"], ["out"], keepdims=0),
    ],
    "a sum times a mask by position": [
        N("ReduceSum", ["x", "i0"], ["s"], keepdims=1),
        *POSITIONS,
        N("Cast", ["places"], ["mask1"], to=FLOAT),
        N("Unsqueeze", ["mask1", "i1"], ["mask"]),
        N("Mul", ["s", "mask"], ["out"]),
    ],
    "a GRU that steps from sample to sample": [
        N("Unsqueeze", ["x", "i1"], ["line"]),
        N("GRU", ["line", "gates", "again"], ["", "last"], hidden_size=1),
        N("Squeeze", ["last", "i0"], ["out"]),
    ],
    "a GRU whose samples come first": [
        N("Unsqueeze", ["x", "i1"], ["line"]),
        N("GRU", ["line", "gates", "again"], ["", "last"], hidden_size=1, layout=1),
        N("ReduceSum", ["last", "i1"], ["out"], keepdims=0),
    ],
    "a GRU that stops early for all but one": [
        N("Unsqueeze", ["x", "i0"], ["line"]),
        N("GRU", ["line", "gates", "again", "", "stops"], ["", "last"], hidden_size=1),
        N("ReduceSum", ["last", "i1"], ["out"], keepdims=0),
    ],
    "a GRU that begins with a mask": [
        N("Unsqueeze", ["x", "i0"], ["line"]),
        N("GRU", ["line", "gates", "again", "", "", "begins"], ["", "last"], hidden_size=1),
        N("ReduceSum", ["last", "i1"], ["out"], keepdims=0),
    ],
    "pixels by a grid": [N("GridSample", ["x", "first"], ["out"])],
    "patches laid together": [N("Col2Im", ["x", "shape", "shape"], ["out"])],
}
# What several attacks start from.
COMMON = [
    N("Transpose", ["x"], ["xt"], perm=[1, 0]),
    N("Cast", ["x"], ["whole_x"], to=INT),
    N("Mul", ["whole_x", "n0"], ["zero"]),
]


@pytest.mark.parametrize("nodes", ATTACKS.values(), ids=ATTACKS)
def test_single_samples_do_not_leave(nodes: list[onnx.NodeProto]) -> None:
    with pytest.raises(BadArtifact, match=r"train.onnx output 'out' would carry single samples off this device"):
        check(*COMMON, *nodes)


def scan_of(body: Sequence[onnx.NodeProto], states: Sequence[str], scanned: str, axis: int) -> list[onnx.NodeProto]:
    """A Scan whose body adds what it sees to its state and gives it again."""
    empty = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(body), "b", [empty("s", FLOAT, None), empty("e", FLOAT, None)],
        [empty("s2", FLOAT, None), empty("seen", FLOAT, None)],
    )  # fmt: skip
    return [
        N("Scan", [*states, scanned], ["state", "out"], body=graph, num_scan_inputs=1, scan_input_axes=[axis])
    ]  # fmt: skip


def test_a_scan_over_the_samples_lets_none_out() -> None:
    body = [N("Add", ["s", "e"], ["s2"]), N("Identity", ["e"], ["seen"])]

    with pytest.raises(BadArtifact, match="Scan along the samples"):
        check(*scan_of(body, ["m"], "x", 0))


def test_a_scan_that_sees_the_samples_from_outside_lets_none_out() -> None:
    body = [N("Add", ["s", "e"], ["s2"]), N("Identity", ["x"], ["seen"])]

    with pytest.raises(BadArtifact, match="not summed over the batch"):
        check(*scan_of(body, ["learning_rate"], "m", 0))


def test_a_state_that_comes_to_hold_samples_is_noticed() -> None:
    body = [N("Add", ["s", "x"], ["s2"]), N("Identity", ["s"], ["seen"])]
    zeros = [N("Shape", ["x"], ["sizes"]), N("ConstantOfShape", ["sizes"], ["zeros"])]

    with pytest.raises(BadArtifact, match="not summed over the batch"):
        check(*zeros, *scan_of(body, ["zeros"], "m", 0))


SUMS = {
    "a mean": [N("ReduceMean", ["x"], ["out"], axes=[0], keepdims=0)],
    "a gradient": [N("Gemm", ["x", "x"], ["out"], transA=1)],
    "class sums": [
        N("OneHot", ["y", "three", "on_off"], ["hot"]),
        N("Gemm", ["hot", "x"], ["out"], transA=1),
    ],
    "sums of rows with one word": [
        N("ConstantOfShape", ["shape"], ["table"]),
        N("Mul", ["whole_x", "n2"], ["words"]),
        N("ScatterElements", ["table", "words", "x"], ["out"], axis=0, reduction="add"),
    ],
    "the whole batch flattened and summed": [
        N("Reshape", ["x", "flat"], ["line"]),
        N("ReduceSum", ["line", "i0"], ["out"], keepdims=0),
    ],
    "away from the mean": [
        N("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        N("Sub", ["x", "mean"], ["away"]),
        N("ReduceSumSquare", ["away"], ["out"], keepdims=0),
    ],
    "the samples twice": [
        N("Concat", ["x", "x"], ["both"], axis=0),
        N("Gemm", ["both", "both"], ["out"], transA=1),
    ],
    "nothing of the batch": [N("Mul", ["w", "learning_rate"], ["out"])],
}


@pytest.mark.parametrize("nodes", SUMS.values(), ids=SUMS)
def test_sums_over_the_batch_may_leave(nodes: list[onnx.NodeProto]) -> None:
    check(*COMMON, *nodes)


def check_eval(*nodes: onnx.NodeProto) -> None:
    check_eval_outputs(outline(nodes, ["logits", "embedding"]), MANIFEST, "eval.onnx")


def test_rows_of_an_evaluation_are_of_their_own_samples() -> None:
    check_eval(N("Identity", ["x"], ["logits"]), N("Relu", ["x"], ["embedding"]))


@pytest.mark.parametrize(
    "nodes",
    [
        [N("Gather", ["x", "n0"], ["r"], axis=0), N("Expand", ["r", "shape"], ["embedding"])],
        [N("Gather", ["x", "i0"], ["r"], axis=0), N("Mul", ["r", "x"], ["embedding"])],
        [N("Mul", ["x", "first"], ["embedding"])],
        [N("Transpose", ["x"], ["embedding"], perm=[1, 0])],
    ],
    ids=["one sample for all", "one sample beside each", "some samples", "across"],
)
def test_rows_of_others_in_an_evaluation_are_refused(nodes: list[onnx.NodeProto]) -> None:
    with pytest.raises(BadArtifact, match="output 'embedding' is not one row for each sample"):
        check_eval(N("Identity", ["x"], ["logits"]), *nodes)


def test_a_mask_inside_a_scan_is_none_of_dropout_outside() -> None:
    body = [N("Mul", ["x", "mask"], ["seen"]), N("Identity", ["s"], ["s2"])]
    inner = [*POSITIONS, N("Cast", ["places"], ["mask1"], to=FLOAT), N("Unsqueeze", ["mask1", "i1"], ["mask"])]

    with pytest.raises(BadArtifact, match="picks samples by their place"):
        check(*scan_of([*inner, *body], ["learning_rate"], "m", 0))


def test_names_inside_a_scan_are_not_those_outside() -> None:
    body = [N("Identity", ["s"], ["s2"]), N("Neg", ["m"], ["seen"])]

    with pytest.raises(BadArtifact, match="'s' is made twice"):
        check(N("Neg", ["m"], ["s"]), *scan_of(body, ["learning_rate"], "m", 0))


def test_a_value_that_is_made_twice_is_refused() -> None:
    with pytest.raises(BadArtifact, match="'out' is made twice"):
        check(N("Neg", ["m"], ["out"]), N("Neg", ["x"], ["out"]))


def test_an_operator_out_of_order_is_refused() -> None:
    with pytest.raises(BadArtifact, match="cannot be followed"):
        check(N("Neg", ["later"], ["out"]), N("Neg", ["m"], ["later"]))
