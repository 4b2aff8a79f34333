"""Training graphs that an honest server never sends: endless, huge, or the end of the process that runs them."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from helpers.tiny_artifact import make_artifact, train_model

TRIPS = 100_000
MOST_NEGATIVE = -(2**63)


def _artifact(nodes: Any, initializers: Any = (), **changes: Any) -> Any:
    """The tiny artifact whose loss is that of the ordinary graph plus `extra`, a number that `nodes` make."""
    model = train_model()
    (last,) = (node for node in model.graph.node if "loss" in node.output)
    last.output[0] = "plain_loss"
    model.graph.node.extend([*nodes, helper.make_node("Add", ["plain_loss", "extra"], ["loss"])])
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in dict(initializers).items())
    return make_artifact(model.SerializeToString(), **changes)


def dividing() -> Any:
    """The smallest whole number divided by minus one, which the processor answers with SIGFPE."""
    node = helper.make_node
    nodes = [
        node("Shape", ["y"], ["rows"]),
        node("Mul", ["rows", "none"], ["nothing"]),
        node("Add", ["nothing", "most_negative"], ["over"]),
        node("Add", ["nothing", "minus_one"], ["under"]),
        node("Div", ["over", "under"], ["divided"]),
        node("Cast", ["divided"], ["divided_f"], to=TensorProto.FLOAT),
        node("ReduceSum", ["divided_f"], ["extra"], keepdims=0),
    ]
    numbers = {"none": [0], "most_negative": [MOST_NEGATIVE], "minus_one": [-1]}
    return _artifact(nodes, {name: np.array(value, np.int64) for name, value in numbers.items()})


def endless(*, hidden: Any = True) -> Any:
    """Three Scans inside one another, each over TRIPS numbers; hidden: how many only a run shows."""
    nodes = [
        helper.make_node("Mul", ["plain_loss", "nought"], ["begin"]),
        *_shape("how_many", hidden=hidden),
        helper.make_node("Expand", ["begin", "how_many"], ["trips"]),
        helper.make_node("Scan", ["begin", "trips"], ["extra"], body=_body(2), num_scan_inputs=1),
    ]
    return _artifact(nodes, {"nought": np.zeros((), np.float32), **_sizes("how_many", TRIPS, hidden=hidden)})


def _body(depth: Any) -> Any:
    def value(name: Any) -> Any:
        return helper.make_tensor_value_info(f"{name}{depth}", TensorProto.FLOAT, [])

    if depth == 0:
        node = helper.make_node("Add", ["carry0", "one0"], ["next0"])
    else:
        names = [f"carry{depth}", "trips"], [f"next{depth}"]
        node = helper.make_node("Scan", *names, body=_body(depth - 1), num_scan_inputs=1)
    return helper.make_graph([node], f"body{depth}", [value("carry"), value("one")], [value("next")])


def huge(entries: Any, *, hidden: Any = True) -> Any:
    """So many numbers at once, of which the manifest says nothing; hidden: how many only a run shows."""
    nodes = [
        *_shape("size", hidden=hidden),
        helper.make_node("Expand", ["plain_loss", "size"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["extra"], keepdims=0),
    ]
    return _artifact(nodes, _sizes("size", entries, hidden=hidden))


def hoarding(entries: Any) -> Any:
    """So many numbers at once and then no end, of which only a run shows either."""
    nodes = [
        *_shape("size", hidden=True),
        helper.make_node("Expand", ["plain_loss", "size"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["summed"], keepdims=0),
        helper.make_node("Mul", ["summed", "nought"], ["begin"]),
        helper.make_node("Add", ["nothing", "many"], ["how_many"]),
        helper.make_node("Expand", ["begin", "how_many"], ["trips"]),
        helper.make_node("Scan", ["begin", "trips"], ["extra"], body=_body(2), num_scan_inputs=1),
    ]
    further = {"nought": np.zeros((), np.float32), "many": np.array([TRIPS], np.int64)}
    return _artifact(nodes, _sizes("size", entries, hidden=True) | further)


def _shape(name: Any, *, hidden: Any) -> Any:
    """Nodes that make a size: hidden "shape": out of the batch's, True: out of labels, which only a run knows."""
    if not hidden:
        return []
    shape = helper.make_node("Shape", ["y"], ["rows"])
    return [
        shape if hidden == "shape" else helper.make_node("ReduceSum", ["y"], ["rows"], keepdims=1),
        helper.make_node("Mul", ["rows", "none"], ["nothing"]),
        helper.make_node("Add", ["nothing", "wanted"], [name]),
    ]


def _sizes(name: Any, size: Any, *, hidden: Any) -> Any:
    wanted = np.array([size], np.int64)
    return {"wanted": wanted, "none": np.zeros(1, np.int64)} if hidden else {name: wanted}
