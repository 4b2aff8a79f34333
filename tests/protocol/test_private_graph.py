"""A device knows again whether a graph clips every sample and adds its noise; servers that cheat are found out."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import helper, numpy_helper
from torch import nn

from fedwright.device_runtime.train.check import check_artifact
from fedwright.protocol.artifact import Artifact, file_info
from fedwright.protocol.errors import BadArtifact
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Structure

Cheat = Callable[[onnx.GraphProto], None]


@cache
def honest() -> Artifact:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return build(Structure(ModelSpec("own", (6,), 3), private=True), module)


def with_cheat(cheat: Cheat) -> Artifact:
    """The honest artifact with a changed graph, whose manifest says so."""
    model = onnx.load_model_from_string(honest().train)
    cheat(model.graph)
    train = model.SerializeToString()
    manifest = honest().manifest
    changed = structs.replace(manifest, files={**manifest.files, "train.onnx": file_info(train)})
    return Artifact(changed, train, honest().eval)


def reader(graph: onnx.GraphProto, name: str) -> Any:
    return next(node for node in graph.node if name in node.input)


def maker(graph: onnx.GraphProto, name: str) -> Any:
    return next(node for node in graph.node if name in node.output)


def put_before(graph: onnx.GraphProto, node: onnx.NodeProto, place: int, made: onnx.NodeProto) -> None:
    """Let a node read what another makes of its input."""
    made.output[:] = [f"cheat_{place}"]
    at = list(graph.node).index(node)
    node.input[place] = made.output[0]
    graph.node.insert(at, made)


def number(graph: onnx.GraphProto, value: float) -> str:
    graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), f"number_{value}"))
    return f"number_{value}"


def louder_sum(graph: onnx.GraphProto) -> None:
    """Ten times the sum of one parameter, after it was clipped."""
    node = reader(graph, "noise/0.weight")
    place = 1 - list(node.input).index("noise/0.weight")
    put_before(graph, node, place, helper.make_node("Mul", [node.input[place], number(graph, 10.0)], ["c"]))


def stretched_noise(graph: onnx.GraphProto) -> None:
    """A sum of one column where the noise has many, over which it would be stretched."""
    node = reader(graph, "noise/2.weight")
    place = 1 - list(node.input).index("noise/2.weight")
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "end"))
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "start"))
    put_before(graph, node, place, helper.make_node("Slice", [node.input[place], "start", "end", "end"], ["c"]))


def no_noise(graph: onnx.GraphProto) -> None:
    """Noise that is taken off again."""
    noisy = reader(graph, "noise/0.weight").output[0]
    node = reader(graph, noisy)
    put_before(graph, node, list(node.input).index(noisy), helper.make_node("Sub", [noisy, "noise/0.weight"], ["c"]))


def shorter_norm(graph: onnx.GraphProto) -> None:
    """A norm that leaves one parameter out."""
    total = next(node for node in graph.node if node.op_type == "Sum")
    del total.input[0]


def larger_weights(graph: onnx.GraphProto) -> None:
    """Weights that may pass 1."""
    low = next(node for node in graph.node if node.op_type == "Min")
    for place, name in enumerate(low.input):
        if any(tensor.name == name for tensor in graph.initializer):
            low.input[place] = number(graph, 5.0)


def way_around(graph: onnx.GraphProto) -> None:
    """A weight that follows the loss."""
    maker(graph, "next/0.bias").output[0] = "before"
    graph.node.append(helper.make_node("Add", ["before", "loss"], ["next/0.bias"]))


def other_clip(graph: onnx.GraphProto) -> None:
    """A clip of the server's own."""
    ratio = next(node for node in graph.node if "clip" in node.input)
    put_before(graph, ratio, 0, helper.make_node("Mul", ["clip", number(graph, 100.0)], ["c"]))


def neighbours(graph: onnx.GraphProto) -> None:
    """Gradients that know the mean of the batch."""
    first = next(node for node in graph.node if "x" in node.input)
    place = list(first.input).index("x")
    mean = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1)
    put_before(graph, first, place, helper.make_node("Add", ["x", "mean"], ["c"]))
    graph.node.insert(0, mean)


def number_of_samples(graph: onnx.GraphProto) -> None:
    """Gradients that know how many samples there are."""
    first = next(node for node in graph.node if "x" in node.input)
    place = list(first.input).index("x")
    put_before(graph, first, place, helper.make_node("Mul", ["x", "count"], ["c"]))
    graph.node.insert(0, helper.make_node("Cast", ["size"], ["count"], to=1))
    graph.node.insert(0, helper.make_node("Size", ["x"], ["size"]))


CHEATS: list[Cheat] = [
    louder_sum,
    stretched_noise,
    no_noise,
    shorter_norm,
    larger_weights,
    way_around,
    other_clip,
    neighbours,
    number_of_samples,
]


def test_an_honest_graph_passes() -> None:
    check_artifact(honest(), batch=8)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_graph_that_hides_less_than_it_says_is_refused(cheat: Cheat) -> None:
    with pytest.raises(BadArtifact, match="does not hide single samples"):
        check_artifact(with_cheat(cheat), batch=8)
