"""Hostile and broken artifacts: each is refused with a sentence, before any session exists."""

import contextlib
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject
from onnx import TensorProto, helper, numpy_helper

from fedwright.device_runtime.train.check import OPERATORS, check_artifact, need_bytes, own_bytes
from fedwright.protocol.artifact import SUPPLIED, Slot, TensorSpec, pack, unpack
from fedwright.protocol.errors import BadArtifact, OverBudget
from fedwright.protocol.onnx_outline import Outline
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure
from helpers.hostile_graphs import endless, huge
from helpers.tiny_artifact import CLASSES, FEATURES, eval_model, make_artifact, train_model


def value(name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def with_external(location: str, name: str = "momentum", **entries: Any) -> onnx.ModelProto:
    """The training graph with one initializer that says its data is elsewhere."""
    model = train_model()
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "momentum")
    tensor.name = name
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=text)
    return model


def refused(message: str, train: onnx.ModelProto | None = None, **changes: Any) -> None:
    with pytest.raises(BadArtifact, match=message):
        check_artifact(make_artifact(train=train and train.SerializeToString(), **changes), batch=4)


def test_a_good_artifact_passes_also_after_travelling() -> None:
    check_artifact(make_artifact(), batch=4, free_bytes=10**9)
    check_artifact(unpack(pack(make_artifact())), batch=4)


def test_a_frozen_tensor_supplied_from_memory_passes() -> None:
    frozen = [TensorSpec("momentum", [])]
    check_artifact(make_artifact(with_external(SUPPLIED).SerializeToString(), frozen=frozen), batch=4)


@pytest.mark.parametrize(
    "location",
    ["../../etc/passwd", "/etc/passwd", "weights.bin", "*/_ORT_MEM_ADDR_/*", SUPPLIED + "/../x", ""],
)
def test_no_path_is_ever_followed(location: str) -> None:
    refused("files are never read", with_external(location), frozen=[TensorSpec("momentum", [])])


def test_outside_data_must_be_declared_and_exact() -> None:
    refused("files are never read", with_external(SUPPLIED))
    refused("files are never read", with_external(SUPPLIED, offset="4096"), frozen=[TensorSpec("momentum", [])])
    refused("not as its manifest says", with_external(SUPPLIED), frozen=[TensorSpec("momentum", [2])])


def test_outside_data_in_a_constant_node_is_refused() -> None:
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), "momentum")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=SUPPLIED)
    node = helper.make_node("Constant", [], ["k"], value=tensor)
    refused("files are never read", train_model(nodes_extra=[node]), frozen=[TensorSpec("momentum", [2])])


def scan_with(node: onnx.NodeProto) -> onnx.NodeProto:
    body = helper.make_graph([node], "body", [value("s", [4])], [value("o", [4])])
    return helper.make_node("Scan", ["W"], ["z"], body=body, num_scan_inputs=1)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        pytest.param(helper.make_node("Relu", ["W"], ["z"], domain="com.microsoft"), "com.microsoft.Relu", id="domain"),
        pytest.param(helper.make_node("PyOp", ["W"], ["z"]), "PyOp", id="custom"),
        pytest.param(helper.make_node("RandomNormalLike", ["W"], ["z"]), "RandomNormalLike", id="random"),
        pytest.param(helper.make_node("SequenceEmpty", [], ["z"]), "SequenceEmpty", id="sequence"),
        pytest.param(helper.make_node("Loop", ["n", "c"], ["z"], body=eval_model().graph), "Loop", id="loop"),
        pytest.param(scan_with(helper.make_node("PyOp", ["s"], ["o"])), "PyOp", id="hidden in a scan"),
    ],
)
def test_operators_not_on_the_list_are_refused(node: onnx.NodeProto, message: str) -> None:
    refused(f"'{message}'.*not on the list", train_model(nodes_extra=[node]))


def test_a_scan_of_allowed_operators_passes() -> None:
    node = scan_with(helper.make_node("Relu", ["s"], ["o"]))
    check_artifact(make_artifact(train_model(nodes_extra=[node]).SerializeToString()), batch=1)


def test_operators_are_names_of_standard_onnx() -> None:
    from onnx import defs

    assert {name for name in OPERATORS if not defs.has(name)} == set()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        pytest.param({"opset_extra": [helper.make_opsetid("evil", 1)]}, "operator set 'evil'", id="foreign domain"),
        pytest.param({"opset": 19}, "opset 19", id="opset too new"),
        pytest.param({"opset": 16}, "opset 16", id="opset not as declared"),
        pytest.param({"ir_version": 11}, "IR version 11", id="IR too new"),
        pytest.param({"ir_version": 9}, "IR version 9", id="IR not as declared"),
        pytest.param({"inputs_extra": [value("spy", [1])]}, "'spy' is not declared", id="undeclared input"),
        pytest.param({"inputs_extra": [value("minus", [])]}, "'minus'", id="input that has a value"),
    ],
)
def test_graphs_that_are_not_what_the_manifest_says(model: dict[str, Any], message: str) -> None:
    refused(message, train_model(**model))


def slots(**changes: Any) -> list[Slot]:
    kept = {
        "W": Slot("W", "W_new", [FEATURES, CLASSES], "trainable"),
        "b": Slot("b", "b_new", [CLASSES], "trainable"),
        "vW": Slot("vW", "vW_new", [FEATURES, CLASSES], "optimizer"),
    }
    return [slot for slot in {**kept, **changes}.values() if slot is not None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"format": 2}, "format 2", id="format"),
        pytest.param({"slots": slots(b=None)}, "eval_slots.*'b'", id="slot missing"),
        pytest.param({"slots": slots(c=Slot("c", "c_new", [1], "buffer"))}, "'c' is declared", id="slot too many"),
        pytest.param({"slots": slots(b=Slot("b", "b_new", [5], "trainable"))}, r"says float32 \[5\]", id="shape"),
        pytest.param({"slots": slots(b=Slot("b", "b_new", [-1], "trainable"))}, "fixed size", id="free state"),
        pytest.param({"slots": slots(b=Slot("b", "b_new", [4], "trainable", "int32"))}, "int32", id="dtype"),
        pytest.param({"slots": slots(b=Slot("b", "W_new", [4], "trainable"))}, "'W_new' twice", id="one output twice"),
        pytest.param({"sides": [TensorSpec("x", [1])]}, "'x' twice", id="one input twice"),
        pytest.param({"scalars": [TensorSpec("temperature", [])]}, "temperature", id="unknown scalar"),
        pytest.param({"loss": "correct", "metrics": ["loss"]}, "first output", id="loss not first"),
        pytest.param({"metrics": []}, "'correct' is not declared", id="undeclared output"),
        pytest.param({"metrics": ["correct", "speed"]}, "'speed' is declared", id="absent output"),
        pytest.param({"eval_slots": ["W", "b", "q"]}, "eval_slots.*'q'", id="eval slot unknown"),
        pytest.param({"eval_slots": ["W"]}, "eval.onnx input 'b' is not declared", id="eval slot missing"),
        pytest.param({"eval_batch": []}, "eval.onnx input 'x' is not declared", id="eval batch missing"),
        pytest.param({"embedding": "features"}, "eval.onnx output 'embedding'", id="eval output"),
        pytest.param({"classes": 0}, "0 classes", id="no classes"),
    ],
)
def test_manifests_that_are_not_what_the_graph_says(changes: dict[str, Any], message: str) -> None:
    refused(message, **changes)


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    model = train_model()
    model.graph.output[0].CopyFrom(value("loss", ["B"]))
    refused("must be one number", model)


def test_changed_bytes_do_not_match_the_hash() -> None:
    good = make_artifact()
    flipped = bytearray(good.train)
    flipped[100] ^= 1
    bad = type(good)(good.manifest, bytes(flipped), good.eval)
    with pytest.raises(BadArtifact, match="hash"):
        check_artifact(bad, batch=4)


def test_oversized_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwright.device_runtime.train.check.MAX_ARTIFACT_BYTES", 1000)
    refused("more than the limit of 1000")


def test_every_truncated_graph_is_refused_even_with_a_fresh_hash() -> None:
    content = train_model().SerializeToString()
    for size in range(0, len(content), 13):
        with pytest.raises(BadArtifact):
            check_artifact(make_artifact(train=content[:size]), batch=4)


@given(st.data())
def test_a_flipped_bit_with_a_fresh_hash_never_does_worse_than_bad_artifact(data: DataObject) -> None:
    good = make_artifact()
    content = bytearray(good.train)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(BadArtifact):
        check_artifact(make_artifact(train=bytes(content)), batch=4)


def test_memory_is_predicted_before_it_is_used() -> None:
    artifact = make_artifact(fixed_bytes=50_000_000, sample_bytes=1_000_000)
    need = need_bytes(artifact.manifest, 32)

    check_artifact(artifact, batch=32, free_bytes=need)
    with pytest.raises(OverBudget) as refusal:
        check_artifact(artifact, batch=32, free_bytes=need - 1)

    assert need > 82_000_000
    assert (refusal.value.need_bytes, refusal.value.free_bytes) == (need, need - 1)
    check_artifact(artifact, batch=31, free_bytes=need - 1)


@pytest.mark.parametrize(
    "structure",
    [
        Structure(ModelSpec("cnn-small", (1, 8, 8), 4), Objective(proximal=0.1), Optimizer("adam", clip_norm=1.0)),
        Structure(ModelSpec("cnn-gn", (3, 16, 16), 4)),
        Structure(ModelSpec("vit-tiny", (3, 16, 16), 4)),
        Structure(ModelSpec("lstm-lm", (6,), 9)),
        Structure(ModelSpec("mlp-lora", (12,), 4), trainable=("head",)),
    ],
    ids=lambda structure: structure.spec.model,
)
def test_what_the_builder_makes_passes(structure: Structure) -> None:
    check_artifact(build(structure, zoo.create(structure.spec, seed=0)), batch=4)


@pytest.mark.parametrize("hidden", [False, "shape"], ids=["a constant", "computed"])
def test_scans_inside_one_another_are_bounded_by_the_product_of_their_lengths(hidden: bool | str) -> None:
    with pytest.raises(BadArtifact, match="runs the body of a Scan 1000000000000000 times"):
        check_artifact(endless(hidden=hidden), batch=4)


@pytest.mark.parametrize("hidden", [False, "shape"], ids=["a constant", "computed"])
def test_a_tensor_is_sized_by_the_graph_and_not_by_the_manifest(hidden: bool | str) -> None:
    giant = huge(1_500_000_000, hidden=hidden)

    with pytest.raises(OverBudget) as refusal:
        check_artifact(giant, batch=4, free_bytes=10**9)
    assert refusal.value.need_bytes > 6 * 10**9
    check_artifact(giant, batch=4, free_bytes=7 * 10**9)


def test_state_is_sized_by_its_shapes_although_the_manifest_says_nothing_of_it() -> None:
    manifest = make_artifact(slots=[Slot("W", "W_new", [500, 10**6], "trainable")]).manifest

    # 500 million numbers of four bytes, twice.
    assert own_bytes(Outline(), manifest) == 4 * 10**9
