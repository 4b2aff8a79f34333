"""The outline reader against the onnx package, and against bytes that are no ONNX file."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject
from onnx import TensorProto, helper, numpy_helper

from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import MAX_NODES, Node, Outline, OutlineValue, Tensor, scan
from helpers.tiny_artifact import train_model


def key(number: int, wire: int) -> bytes:
    return bytes([number << 3 | wire])


def part(number: int, body: bytes) -> bytes:
    """A length-delimited field."""
    return key(number, 2) + varint(len(body)) + body


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


MINIMAL = key(1, 0) + b"\x08" + part(7, b"") + part(8, key(2, 0) + b"\x11")


def test_outline_of_a_real_graph_is_what_onnx_says() -> None:
    model = train_model()
    found = scan(model.SerializeToString(), what="train.onnx")

    assert (found.ir_version, found.opsets, found.nodes) == (8, {"": 17}, len(model.graph.node))
    assert found.operators == {("", node.op_type) for node in model.graph.node}
    assert [value.name for value in found.inputs] == [value.name for value in model.graph.input]
    assert found.inputs[0] == OutlineValue("x", "float32", (-1, 3))
    assert found.outputs[0] == OutlineValue("loss", "float32", ())
    assert [tensor.name for tensor in found.initializers] == [tensor.name for tensor in model.graph.initializer]
    assert found.initializers[1] == Tensor("depth", "int64", (1,), 8, {}, numbers=(4,))


def test_smallest_model() -> None:
    assert scan(MINIMAL, what="m") == Outline(ir_version=8, opsets={"": 17})


def test_operators_and_tensors_inside_subgraphs_are_seen() -> None:
    body = helper.make_graph(
        [helper.make_node("Secret", ["s"], ["o"], domain="evil")],
        "body",
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [])],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.zeros(2, np.float32), "hidden")],
    )
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.zeros(3, np.int64), "k"))
    model = train_model(nodes_extra=[helper.make_node("Scan", ["W"], ["z"], body=body, num_scan_inputs=1), constant])

    found = scan(model.SerializeToString(), what="m")

    assert ("evil", "Secret") in found.operators
    assert [tensor.name for tensor in found.inner] == ["hidden", "k"]


def test_external_data_is_reported() -> None:
    model = train_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    found = scan(model.SerializeToString(), what="m")
    assert found.initializers[0].external == {"location": "../../etc/passwd"}


def test_packed_and_unpacked_dimensions_are_the_same() -> None:
    packed = part(7, part(5, part(1, b"\x02\x03") + key(2, 0) + b"\x01"))
    unpacked = part(7, part(5, key(1, 0) + b"\x02" + key(1, 0) + b"\x03" + key(2, 0) + b"\x01"))
    assert scan(packed, what="m").initializers == scan(unpacked, what="m").initializers
    assert scan(packed, what="m").initializers[0].dims == (2, 3)


def nested(depth: int) -> bytes:
    graph = b""
    for _ in range(depth):
        graph = part(1, part(5, part(6, graph)))
    return part(7, graph)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "no graph", id="empty"),
        pytest.param(b"not an onnx file at all", "m is not an ONNX file", id="text"),
        pytest.param(MINIMAL[:-1], "cut short", id="truncated"),
        pytest.param(key(7, 2) + b"\xff\xff\xff\xff\x0f", "cut short", id="length beyond the end"),
        pytest.param(b"\xff" * 11, "64 bits", id="endless number"),
        pytest.param(key(1, 3), "wire type 3", id="group"),
        pytest.param(MINIMAL + key(1, 0) + b"\x09", "exactly one", id="version twice"),
        pytest.param(MINIMAL + part(7, b""), "twice", id="graph twice"),
        pytest.param(MINIMAL + part(8, key(2, 0) + b"\x11"), "twice", id="opset twice"),
        pytest.param(MINIMAL + b"\xa2\x01\x00", "unknown field 20", id="training"),
        pytest.param(MINIMAL + b"\xca\x01\x00", "unknown field 25", id="functions"),
        pytest.param(part(7, part(15, b"")), "unknown field 15", id="sparse initializer"),
        pytest.param(part(7, part(11, part(1, b"x"))), "not a tensor", id="untyped input"),
        pytest.param(part(7, part(5, key(2, 0) + b"\x08")), "element type 8", id="text tensor"),
        pytest.param(
            part(7, part(5, part(1, b"\x01" * 9) + key(2, 0) + b"\x01")), "has the shape", id="too many dimensions"
        ),
        pytest.param(part(7, part(5, key(1, 0) + b"\xff" * 9 + b"\x01" + key(2, 0) + b"\x01")), "shape", id="negative"),
        pytest.param(part(7, part(5, key(14, 0) + b"\x01" + key(2, 0) + b"\x01")), "not where", id="outside nowhere"),
        pytest.param(part(7, part(1, part(4, b"\xff\xfe"))), "utf-8", id="name not text"),
        pytest.param(part(7, part(1, part(4, b"A" * 2000))), "2000 bytes", id="name too long"),
        pytest.param(part(7, part(1, key(4, 0) + b"\x01")), "wire type 0", id="name a number"),
        pytest.param(part(7, part(1, part(1, b"\xff"))), "utf-8", id="input name not text"),
        pytest.param(nested(9), "nested", id="nested too deep"),
        pytest.param(nested(4000), "nested", id="nested to break the stack"),
        pytest.param(part(7, part(1, b"") * (MAX_NODES + 1)), "more than", id="too many nodes"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadArtifact, match=message):
        scan(data, what="m")


@given(st.binary(max_size=400))
def test_arbitrary_bytes_never_do_worse_than_bad_artifact(data: bytes) -> None:
    with contextlib.suppress(BadArtifact):
        scan(data, what="m")


@given(st.data())
def test_a_damaged_graph_never_does_worse_than_bad_artifact(data: DataObject) -> None:
    content = bytearray(train_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadArtifact):
        scan(bytes(content[: data.draw(st.integers(0, len(content)))]), what="m")


def test_operators_are_told_with_their_attributes() -> None:
    attribute = part(1, b"axes") + part(8, b"\x02\x03")
    node = part(1, b"a") + part(2, b"b") + part(4, b"Slice") + part(5, attribute)

    graph = scan(part(7, part(1, node)), what="m").graph

    assert graph.nodes == [Node("Slice", ("a",), ("b",), {"axes": (2, 3)})]


def test_an_attribute_that_stands_twice_is_refused() -> None:
    attribute = part(5, part(1, b"axis") + key(3, 0) + b"\x01")

    with pytest.raises(BadArtifact, match="attribute axis twice"):
        scan(part(7, part(1, part(4, b"Concat") + attribute * 2)), what="m")
