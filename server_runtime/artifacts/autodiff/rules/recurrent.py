"""nn.LSTM: one Scan over time forward, one backward; everything that does not depend on the step is one product.

Gates stand in ONNX order i, o, f, g. With p_t = W x_t + R h_{t-1} + b:
    c_t = f c_{t-1} + i g      h_t = o tanh(c_t)
The forward Scan keeps the gates, the backward Scan turns dh_t into dp_t; then dW, dR and dx are products over all
steps. Inside the Scans samples are columns, outside they are rows: then the large matrix is the left factor of each
product, which onnxruntime uses as it is, while it would repack a right factor at every step.
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
    """Hidden states of all steps [T, B, H], last hidden state and last cell state [B, H] of one direction."""
    x, weight, recurrent, bias, _, h0, c0, _ = (node.inputs + [""] * 8)[:8]
    hidden = node.attrs["hidden_size"]
    steps, _, size = graph.shape(x)
    args = [graph.op("Reshape", x, graph.ints(-1, size)), _pick(graph, weight, index)]
    if bias:
        both = graph.op("Reshape", _pick(graph, bias, index), graph.ints(2, 4 * hidden))
        args.append(graph.op("ReduceSum", both, graph.ints(0), keepdims=0))
    products = graph.op("Reshape", graph.op("Gemm", *args, transB=1), graph.ints(steps, -1, 4 * hidden))
    last_h, last_c, all_h, _, _, _ = graph.op(
        "Scan",
        *(_start(graph, state, x, index, hidden) for state in (h0, c0)),
        products,
        outputs=6,
        body=_forward_body(_pick(graph, recurrent, index), hidden),
        num_scan_inputs=1,
        scan_input_directions=[reverse],
        scan_output_directions=[reverse] * 4,
    )
    return all_h, graph.op("Transpose", last_h, perm=[1, 0]), graph.op("Transpose", last_c, perm=[1, 0])


def _pick(graph: Graph, stacked: str, index: int) -> str:
    """One direction of a tensor whose first axis is the direction."""
    shape = graph.shape(stacked)
    if shape[0] > 1:
        stacked = graph.op("Slice", stacked, graph.ints(index), graph.ints(index + 1), graph.ints(0))
    return graph.op("Squeeze", stacked, graph.ints(0))


def _start(graph: Graph, state: str, x: str, index: int, hidden: int) -> str:
    """The state before the first step, [H, B]: given or zero."""
    if state:
        return graph.op("Transpose", _pick(graph, state, index), perm=[1, 0])
    batch = graph.op("Slice", graph.op("Shape", x), graph.ints(1), graph.ints(2))
    return graph.op("ConstantOfShape", graph.op("Concat", graph.ints(hidden), batch, axis=0))


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
    """(h, c, W x + b) -> (h', c', h' as rows, c, tanh c', gates); reads R [4H, H] of the outer graph."""
    body = _Body(_CELL, ["h", "c", "p"])
    body.op("MatMul", recurrent, "h", outputs=("rh",))
    body.op("Transpose", "p", outputs=("columns",), perm=[1, 0])
    body.op("Add", "rh", "columns", outputs=("sums",))
    body.op("Split", "sums", body.ints("three_one", 3 * hidden, hidden), outputs=("iof", "gp"), axis=0)
    body.op("Sigmoid", "iof", outputs=("s",))
    body.op("Tanh", "gp", outputs=("g",))
    body.op("Split", "s", body.ints("thirds", hidden, hidden, hidden), outputs=("i", "o", "f"), axis=0)
    body.op("Mul", "f", "c", outputs=("fc",))
    body.op("Mul", "i", "g", outputs=("ig",))
    body.op("Add", "fc", "ig", outputs=("c_next",))
    body.op("Tanh", "c_next", outputs=("tc",))
    body.op("Mul", "o", "tc", outputs=("h_next",))
    body.op("Transpose", "h_next", outputs=("rows",), perm=[1, 0])
    body.op("Identity", "c", outputs=("c_kept",))
    body.op("Concat", "s", "g", outputs=("gates",), axis=0)
    return body.build(["h_next", "c_next", "rows", "c_kept", "tc", "gates"])


def _backward_body(recurrent: str, hidden: int) -> GraphProto:
    """(dh, dc, dy, c_prev, tanh c, gates) -> (dh_prev, dc_prev, dp as rows); reads R^T [H, 4H] of the outer graph."""
    body = _Body("lstm_cell_backward", ["dh", "dc", "dy", "c_prev", "tc", "gates"])
    body.op("Split", "gates", body.ints("three_one", 3 * hidden, hidden), outputs=("s", "g"), axis=0)
    body.op("Split", "s", body.ints("thirds", hidden, hidden, hidden), outputs=("i", "o", "f"), axis=0)
    body.op("Transpose", "dy", outputs=("columns",), perm=[1, 0])
    body.op("Add", "columns", "dh", outputs=("dh_all",))
    body.op("Mul", "dh_all", "tc", outputs=("do",))
    body.op("Mul", "do", "tc", outputs=("drop",))
    body.op("Sub", "dh_all", "drop", outputs=("kept",))
    body.op("Mul", "kept", "o", outputs=("dtc",))
    body.op("Add", "dtc", "dc", outputs=("dc_all",))
    body.op("Mul", "dc_all", "g", outputs=("di",))
    body.op("Mul", "dc_all", "c_prev", outputs=("df",))
    body.op("Mul", "dc_all", "i", outputs=("dg",))
    body.op("Concat", "di", "do", "df", outputs=("ds",), axis=0)
    body.op("Mul", "ds", "s", outputs=("s1",))
    body.op("Mul", "s1", "s", outputs=("s2",))
    body.op("Sub", "s1", "s2", outputs=("ps",))
    body.op("Mul", "g", "g", outputs=("g2",))
    body.op("Mul", "dg", "g2", outputs=("dg2",))
    body.op("Sub", "dg", "dg2", outputs=("pg",))
    body.op("Concat", "ps", "pg", outputs=("dp",), axis=0)
    body.op("MatMul", recurrent, "dp", outputs=("dh_prev",))
    body.op("Mul", "dc_all", "f", outputs=("dc_prev",))
    body.op("Transpose", "dp", outputs=("rows",), perm=[1, 0])
    return body.build(["dh_prev", "dc_prev", "rows"])


@rule("Scan")
def scan(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """Backward through the Scan that `lstm` makes; any other Scan is refused."""
    body = node.attrs["body"]
    if body.name != _CELL:
        raise UnsupportedOperator(node.op, node.name, node.module)
    graph = context.graph
    reverse = node.attrs["scan_input_directions"][0]
    h0, c0, inputs = node.inputs
    _, _, all_h, *kept = node.outputs
    recurrent = body.node[0].input[0]
    hidden = context.shape(recurrent)[1]
    d_last_h, d_last_c, d_all = (
        grad or graph.op("ConstantOfShape", graph.op("Shape", name))
        for grad, name in zip(grads[:3], (h0, c0, all_h), strict=True)
    )
    dh0, dc0, dp = graph.op(
        "Scan",
        d_last_h,
        d_last_c,
        d_all,
        *kept,
        outputs=3,
        body=_backward_body(graph.op("Transpose", recurrent, perm=[1, 0]), hidden),
        num_scan_inputs=4,
        scan_input_directions=[_BACK - reverse] * 4,
        scan_output_directions=[_BACK - reverse],
    )
    if context.needs(recurrent):
        before = _shifted(graph, all_h, graph.op("Transpose", h0, perm=[1, 0]), reverse)
        rows = graph.op("Reshape", before, graph.ints(-1, hidden))
        context.add(recurrent, graph.op("Gemm", graph.op("Reshape", dp, graph.ints(-1, 4 * hidden)), rows, transA=1))
    return [dh0, dc0, dp if context.needs(inputs) else None]


def _shifted(graph: Graph, states: str, start: str, reverse: int) -> str:
    """The state before each step: the start, then all states but the last (in the order of time run through)."""
    first = graph.op("Unsqueeze", start, graph.ints(0))
    if reverse:
        rest = graph.op("Slice", states, graph.ints(1), graph.ints(np.iinfo(np.int64).max), graph.ints(0))
        return graph.op("Concat", rest, first, axis=0)
    rest = graph.op("Slice", states, graph.ints(0), graph.ints(-1), graph.ints(0))
    return graph.op("Concat", first, rest, axis=0)
