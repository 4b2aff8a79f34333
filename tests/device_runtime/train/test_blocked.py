"""Convolutions in the processor's blocked layout give what plain ones do."""

import platform
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from fedwright.device_runtime.train import blocked

X86 = platform.machine().lower() in ("x86_64", "amd64")
needs_blocks = pytest.mark.skipif(not X86, reason="onnxruntime has blocked convolutions on x86-64")


def graph_of(operator: str, x: tuple[int, ...], weight: tuple[int, ...], *, bias: bool, attrs: dict[str, Any]) -> bytes:
    shapes: dict[str, tuple[str | int, ...]] = {"x": ("batch", *x), "w": weight}
    if bias:
        shapes["b"] = (weight[0],)
    floats = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    # Twice the image, so that it is not the graph's input that is convolved.
    nodes = [
        helper.make_node("Add", ["x", "x"], ["xx"]),
        helper.make_node(operator, ["xx", *list(shapes)[1:]], ["y"], **attrs),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph(nodes, "g", list(floats.values()), [output])
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


def answer(graph: bytes, feeds: dict[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


@needs_blocks
@pytest.mark.parametrize(
    ("operator", "x", "weight", "bias", "attrs"),
    [
        pytest.param("Conv", (32, 9, 7), (16, 32, 3, 3), True, {"pads": [1, 0, 1, 2]}, id="dense"),
        pytest.param("Conv", (32, 9, 7), (32, 32, 5, 5), False, {"pads": [2] * 4, "strides": [2, 1]}, id="stride"),
        pytest.param("Conv", (24, 9, 9), (32, 24, 3, 3), True, {"dilations": [2, 2]}, id="not-full"),
        pytest.param("Conv", (32, 8, 8), (32, 1, 3, 3), True, {"pads": [1] * 4, "group": 32}, id="depthwise"),
        pytest.param("Conv", (40, 8, 8), (40, 1, 5, 5), True, {"strides": [2, 2], "group": 40}, id="thin-not-full"),
        pytest.param("ConvTranspose", (32, 7, 6), (32, 16, 5, 5), False, {"pads": [2, 2, 1, 2]}, id="transposed"),
        pytest.param("ConvTranspose", (16, 7, 6), (16, 32, 3, 3), False, {"dilations": [2, 1]}, id="dilated"),
    ],
)
def test_blocks_give_what_the_plain_operator_gives(
    operator: str, x: tuple[int, ...], weight: tuple[int, ...], bias: bool, attrs: dict[str, Any]
) -> None:
    plain = graph_of(operator, x, weight, bias=bias, attrs=attrs)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((3, *x), np.float32), "w": rng.standard_normal(weight, np.float32)}
    if bias:
        feeds["b"] = rng.standard_normal(weight[0], np.float32)

    made = blocked.block_convolutions(plain, what="a graph")

    assert blocked.DOMAIN.encode() in made
    np.testing.assert_allclose(answer(made, feeds), answer(plain, feeds), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("operator", "x", "weight", "attrs"),
    [
        pytest.param("Conv", (32, 8, 8), (32, 32, 1, 1), {}, id="one-position"),
        pytest.param("Conv", (3, 8, 8), (16, 3, 3, 3), {}, id="few-channels"),
        pytest.param("Conv", (32, 8, 8), (32, 8, 3, 3), {"group": 4}, id="grouped"),
        pytest.param("Conv", (256, 4, 4), (256, 256, 3, 3), {}, id="many-channels"),
        pytest.param("Conv", (18, 8, 8), (18, 1, 3, 3), {"group": 18}, id="no-whole-quads"),
        pytest.param("Conv", (32, 8, 8), (32, 32, 3, 3), {"auto_pad": "SAME_UPPER"}, id="automatic-padding"),
        pytest.param("ConvTranspose", (32, 8, 8), (32, 16, 3, 3), {"strides": [2, 2]}, id="transposed-stride"),
    ],
)
def test_what_does_not_gain_stays_as_it_is(
    operator: str, x: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    plain = graph_of(operator, x, weight, bias=False, attrs=attrs)

    assert blocked.block_convolutions(plain, what="a graph") == plain


def test_other_processors_keep_plain_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    assert blocked.block_size.__wrapped__() == 0


@needs_blocks
def test_an_onnxruntime_without_blocks_keeps_plain_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "DOMAIN", "com.microsoft.unheard-of")

    assert blocked.block_size.__wrapped__() == 0


@needs_blocks
def test_blocks_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocked.block_size.__wrapped__() in (8, 16)

    monkeypatch.setattr(blocked, "_agrees", lambda block, group: group == 1)

    assert blocked.block_size.__wrapped__() == 0
