"""What recurrent layers share: one Scan over time per direction, subgraphs for its body, and the way back through it.

Inside the Scans samples are columns, outside they are rows: then the large matrix is the left factor of each product,
which onnxruntime uses as it is, while it would repack a right factor at every step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node

BACK = 1
ScanBackward = Callable[[Backward, Node, list[str | None]], list[str | None]]
# The way back through a Scan, by the name of its body.
SCANS: dict[str, ScanBackward] = {}


@rule("Scan")
def scan(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Backward through a Scan that a lowering made; any other Scan is refused."""
    backward = SCANS.get(node.attrs["body"].name)
    if backward is None:
        raise UnsupportedOperator(node.op, node.name, node.module)
    return backward(context, node, grads)


def directions(node: Node) -> list[int]:
    """For each direction of a recurrent layer, whether it runs against time."""
    found = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}
    return found[str(node.attrs.get("direction", "forward"))]


def give_outputs(graph: Graph, node: Node, results: list[tuple[str, ...]]) -> None:
    """Name what each direction made (all steps, then last states) as the outputs of the layer."""
    for output, values in zip(node.outputs, zip(*results, strict=True), strict=False):
        if output:
            axis = 1 if output == node.outputs[0] else 0
            parts = [graph.op("Unsqueeze", value, graph.ints(axis)) for value in values]
            graph.rename_output(parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=axis), output)


def pick(graph: Graph, stacked: str, index: int) -> str:
    """One direction of a tensor whose first axis is the direction."""
    shape = graph.shape(stacked)
    if shape[0] > 1:
        stacked = graph.op("Slice", stacked, graph.ints(index), graph.ints(index + 1), graph.ints(0))
    return graph.op("Squeeze", stacked, graph.ints(0))


def start(graph: Graph, state: str, x: str, index: int, hidden: int) -> str:
    """The state before the first step, [H, B]: given or zero."""
    if state:
        return graph.op("Transpose", pick(graph, state, index), perm=[1, 0])
    batch = graph.op("Slice", graph.op("Shape", x), graph.ints(1), graph.ints(2))
    return graph.op("ConstantOfShape", graph.op("Concat", graph.ints(hidden), batch, axis=0))


def input_products(graph: Graph, x: str, weight: str, bias: str | None) -> str:
    """W x + b of all steps at once: [rows of W, T, B]."""
    steps, _, size = graph.shape(x)
    rows = graph.shape(weight)[0]
    args = [weight, graph.op("Reshape", x, graph.ints(-1, size))]
    if bias:
        args.append(graph.op("Reshape", bias, graph.ints(-1, 1), shape=(rows, 1)))
    return graph.op("Reshape", graph.op("Gemm", *args, transB=1), graph.ints(rows, steps, -1))


def grad_or_zero(graph: Graph, grad: str | None, like: str) -> str:
    """A gradient, or zeros of the shape of what it would be the gradient of."""
    return grad or graph.op("ConstantOfShape", graph.op("Shape", like))


def states_before(graph: Graph, states: str, first: str, reverse: int) -> str:
    """The state before each step [T * B, H]: the first [H, B], then all but the last (in the order run through)."""
    begin = graph.op("Unsqueeze", graph.op("Transpose", first, perm=[1, 0]), graph.ints(0))
    if reverse:
        rest = graph.op("Slice", states, graph.ints(1), graph.ints(np.iinfo(np.int64).max), graph.ints(0))
        joined = graph.op("Concat", rest, begin, axis=0)
    else:
        rest = graph.op("Slice", states, graph.ints(0), graph.ints(-1), graph.ints(0))
        joined = graph.op("Concat", begin, rest, axis=0)
    return graph.op("Reshape", joined, graph.ints(-1, graph.shape(states)[-1]))


class Body:
    """A subgraph under construction."""

    def __init__(self, name: str, inputs: list[str]) -> None:
        self.name = name
        self.inputs = inputs
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def op(self, op_type: str, *inputs: str, outputs: tuple[str, ...], **attrs: Any) -> None:
        """Append a node."""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, **attrs))

    def ints(self, name: str, *values: int) -> str:
        """An int64 constant."""
        self.constants.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        return name

    def build(self, outputs: list[str]) -> GraphProto:
        """The finished subgraph of rank-2 floats."""
        return helper.make_graph(self.nodes, self.name, _matrices(self.inputs), _matrices(outputs), self.constants)


def _matrices(names: list[str]) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in names]
