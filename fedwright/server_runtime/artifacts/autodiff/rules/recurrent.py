"""nn.LSTM: one Scan over time forward, one backward; everything that does not depend on the step is one Gemm.

Gates stand in ONNX order i, o, f, g. With p_t = x_t W^T + h_{t-1} R^T + b:
    c_t = f c_{t-1} + i g      h_t = o tanh(c_t)
The forward Scan keeps the gates, the backward Scan turns dh_t into dp_t; then dW, dR and dx are products over all
steps.
"""

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering

_CELL = "lstm_cell"
_BACK = 1


@lowering("LSTM")
def lstm(graph: Graph, node: Node) -> bool:
    """One Scan per direction; unusual variants stay as they are and are refused later."""
    _, _, _, _, lengths, _, _, peephole = (node.inputs + [""] * 8)[:8]
    usual = not lengths and not peephole and set(node.attrs) <= {"hidden_size", "direction", "layout", "input_forget"}
    if not usual or node.attrs.get("layout", 0) or node.attrs.get("input_forget", 0):
        return False
    direction = node.attrs.get("direction", "forward")
    direction = direction.decode() if isinstance(direction, bytes) else direction
    backwards = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]
    results = [_direction(graph, node, index, reverse) for index, reverse in enumerate(backwards)]
    for output, values in zip(node.outputs, zip(*results, strict=True), strict=False):
        if output:
            axis = 1 if output == node.outputs[0] else 0
            parts = [graph.op("Unsqueeze", value, graph.ints(axis)) for value in values]
            graph.rename_output(parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=axis), output)
    return True


def _direction(graph: Graph, node: Node, index: int, reverse: int) -> tuple[str, str, str]:
    """Hidden states of all steps [T, B, H], last hidden state and last cell state of one direction."""
    x, weight, recurrent, bias, _, h0, c0, _ = (node.inputs + [""] * 8)[:8]
    hidden = node.attrs["hidden_size"]
    steps, _, size = graph.shape(x)
    rows = graph.op("Reshape", x, graph.ints(-1, size))
    args = [rows, _pick(graph, weight, index)]
    if bias:
        both = graph.op("Reshape", _pick(graph, bias, index), graph.ints(2, 4 * hidden))
        args.append(graph.op("ReduceSum", both, graph.ints(0), keepdims=0))
    product = graph.op("Gemm", *args, transB=1)
    inputs = graph.op("Reshape", product, graph.ints(steps, -1, 4 * hidden))
    turned = graph.op("Transpose", _pick(graph, recurrent, index), perm=[1, 0])
    start = [_pick(graph, s, index) if s else _zero_state(graph, x, hidden) for s in (h0, c0)]
    last_h, last_c, all_h, _, _ = graph.op(
        "Scan",
        *start,
        inputs,
        outputs=5,
        body=_forward_body(turned, hidden),
        num_scan_inputs=1,
        scan_input_directions=[reverse],
        scan_output_directions=[reverse] * 3,
    )
    return all_h, last_h, last_c


def _pick(graph: Graph, stacked: str, index: int) -> str:
    """One direction of a tensor whose first axis is the direction."""
    shape = graph.shape(stacked)
    if shape[0] > 1:
        stacked = graph.op("Slice", stacked, graph.ints(index), graph.ints(index + 1), graph.ints(0))
    return graph.op("Squeeze", stacked, graph.ints(0))


def _zero_state(graph: Graph, x: str, hidden: int) -> str:
    batch = graph.op("Slice", graph.op("Shape", x), graph.ints(1), graph.ints(2))
    return graph.op("ConstantOfShape", graph.op("Concat", batch, graph.ints(hidden), axis=0))


class _Body:
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


def _forward_body(recurrent: str, hidden: int) -> GraphProto:
    """(h, c, x W^T + b) -> (h', c', h', c', gates); reads R^T [H, 4H] of the outer graph."""
    body = _Body(_CELL, ["h", "c", "p"])
    body.op("Gemm", "h", recurrent, "p", outputs=("gates",))
    body.op("Split", "gates", body.ints("three_one", 3 * hidden, hidden), outputs=("iof", "gp"), axis=1)
    body.op("Sigmoid", "iof", outputs=("s",))
    body.op("Tanh", "gp", outputs=("g",))
    body.op("Split", "s", body.ints("thirds", hidden, hidden, hidden), outputs=("i", "o", "f"), axis=1)
    body.op("Mul", "f", "c", outputs=("fc",))
    body.op("Mul", "i", "g", outputs=("ig",))
    body.op("Add", "fc", "ig", outputs=("c_next",))
    body.op("Tanh", "c_next", outputs=("tc",))
    body.op("Mul", "o", "tc", outputs=("h_next",))
    body.op("Concat", "s", "g", outputs=("kept",), axis=1)
    body.op("Identity", "h_next", outputs=("h_all",))
    body.op("Identity", "c_next", outputs=("c_all",))
    return body.build(["h_next", "c_next", "h_all", "c_all", "kept"])


def _backward_body(recurrent: str, hidden: int) -> GraphProto:
    """(dh, dc, dy, gates, c, c_prev) -> (dh_prev, dc_prev, dp); reads R [4H, H] of the outer graph."""
    body = _Body("lstm_cell_backward", ["dh", "dc", "dy", "gates", "c", "c_prev"])
    body.op("Split", "gates", body.ints("quarters", *[hidden] * 4), outputs=("i", "o", "f", "g"), axis=1)
    body.op("Tanh", "c", outputs=("tc",))
    body.op("Add", "dy", "dh", outputs=("dh_all",))
    body.op("Mul", "dh_all", "o", outputs=("dho",))
    body.op("Mul", "tc", "tc", outputs=("tc2",))
    body.op("Mul", "dho", "tc2", outputs=("drop",))
    body.op("Sub", "dho", "drop", outputs=("dtc",))
    body.op("Add", "dtc", "dc", outputs=("dc_all",))
    body.op("Mul", "dc_all", "g", outputs=("di",))
    body.op("Mul", "dh_all", "tc", outputs=("do",))
    body.op("Mul", "dc_all", "c_prev", outputs=("df",))
    body.op("Mul", "dc_all", "i", outputs=("dg",))
    for gate in "iof":
        body.op("Mul", f"d{gate}", gate, outputs=(f"{gate}1",))
        body.op("Mul", f"{gate}1", gate, outputs=(f"{gate}2",))
        body.op("Sub", f"{gate}1", f"{gate}2", outputs=(f"p{gate}",))
    body.op("Mul", "g", "g", outputs=("g2",))
    body.op("Mul", "dg", "g2", outputs=("dg2",))
    body.op("Sub", "dg", "dg2", outputs=("pg",))
    body.op("Concat", "pi", "po", "pf", "pg", outputs=("dp",), axis=1)
    body.op("MatMul", "dp", recurrent, outputs=("dh_prev",))
    body.op("Mul", "dc_all", "f", outputs=("dc_prev",))
    return body.build(["dh_prev", "dc_prev", "dp"])


@rule("Scan")
def scan(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Backward through the Scan that `lstm` makes; any other Scan is refused."""
    body = node.attrs["body"]
    if body.name != _CELL:
        raise UnsupportedOperator(node.op, node.name, node.module)
    graph = context.graph
    reverse = node.attrs["scan_input_directions"][0]
    h0, c0, inputs = node.inputs
    _, _, all_h, all_c, gates = node.outputs
    turned = body.node[0].input[1]
    hidden = context.shape(turned)[0]
    d_last_h, d_last_c, d_all = (
        grad or graph.op("ConstantOfShape", graph.op("Shape", name))
        for grad, name in zip(grads[:3], (h0, c0, all_h), strict=True)
    )
    recurrent = graph.op("Transpose", turned, perm=[1, 0])
    previous_c = _shifted(graph, all_c, c0, reverse)
    dh0, dc0, dp = graph.op(
        "Scan",
        d_last_h,
        d_last_c,
        d_all,
        gates,
        all_c,
        previous_c,
        outputs=3,
        body=_backward_body(recurrent, hidden),
        num_scan_inputs=4,
        scan_input_directions=[_BACK - reverse] * 4,
        scan_output_directions=[_BACK - reverse],
    )
    if context.needs(turned):
        before = graph.op("Reshape", _shifted(graph, all_h, h0, reverse), graph.ints(-1, hidden))
        columns = graph.op("Reshape", dp, graph.ints(-1, 4 * hidden))
        context.add(turned, graph.op("Gemm", before, columns, transA=1))
    return [dh0, dc0, dp if context.needs(inputs) else None]


def _shifted(graph: Graph, states: str, start: str, reverse: int) -> str:
    """The state before each step: the start, then all states but the last (in the order of time run through)."""
    first = graph.op("Unsqueeze", start, graph.ints(0))
    if reverse:
        rest = graph.op("Slice", states, graph.ints(1), graph.ints(np.iinfo(np.int64).max), graph.ints(0))
        return graph.op("Concat", rest, first, axis=0)
    rest = graph.op("Slice", states, graph.ints(0), graph.ints(-1), graph.ints(0))
    return graph.op("Concat", first, rest, axis=0)
