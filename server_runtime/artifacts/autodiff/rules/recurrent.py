"""nn.LSTM: one Scan over time forward, one backward; everything that does not depend on the step is one product.

Gates stand in ONNX order i, o, f, g. With p_t = W x_t + R h_{t-1} + b:
    c_t = f c_{t-1} + i g      h_t = o tanh(c_t)
The forward Scan keeps the gates, the backward Scan turns dh_t into dp_t; then dW, dR and dx are products over all
steps.
"""

from onnx import GraphProto

from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering
from fedwright.server_runtime.artifacts.autodiff.rules import scans
from fedwright.server_runtime.artifacts.autodiff.rules.scans import BACK, Body

_CELL = "lstm_cell"
_GATES = "iofg"


@lowering("LSTM")
def lstm(graph: Graph, node: Node) -> bool:
    """One Scan per direction; unusual variants stay as they are and are refused later."""
    _, _, _, _, lengths, _, _, peephole = (node.inputs + [""] * 8)[:8]
    usual = not lengths and not peephole and set(node.attrs) <= {"hidden_size", "direction", "layout", "input_forget"}
    if not usual or node.attrs.get("layout", 0) or node.attrs.get("input_forget", 0):
        return False
    results = [_direction(graph, node, index, reverse) for index, reverse in enumerate(scans.directions(node))]
    scans.give_outputs(graph, node, results)
    return True


def _direction(graph: Graph, node: Node, index: int, reverse: int) -> tuple[str, ...]:
    """Hidden states of all steps [T, B, H], last hidden state and last cell state [B, H] of one direction."""
    x, weight, recurrent, bias, _, h0, c0, _ = (node.inputs + [""] * 8)[:8]
    hidden = node.attrs["hidden_size"]
    offset = None
    if bias:
        both = graph.op("Reshape", scans.pick(graph, bias, index), graph.ints(2, 4 * hidden))
        offset = graph.op("ReduceSum", both, graph.ints(0), keepdims=0)
    matrix = scans.pick(graph, weight, index)
    graph.record(matrix, graph.shape(weight)[1:])
    last_h, last_c, all_h, *_ = graph.op(
        "Scan",
        *(scans.start(graph, state, x, index, hidden) for state in (h0, c0)),
        scans.input_products(graph, x, matrix, offset),
        outputs=9,
        body=_forward_body(scans.pick(graph, recurrent, index), hidden),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[reverse],
        scan_output_directions=[reverse] * 7,
    )
    return all_h, graph.op("Transpose", last_h, perm=[1, 0]), graph.op("Transpose", last_c, perm=[1, 0])


def _forward_body(recurrent: str, hidden: int) -> GraphProto:
    """(h, c, W x + b) -> (h', c', h' as rows, c, tanh c', gates); reads R [4H, H] of the outer graph."""
    body = Body(_CELL, ["h", "c", "p"])
    body.op("MatMul", recurrent, "h", outputs=("rh",))
    body.op("Add", "rh", "p", outputs=("sums",))
    body.op("Split", "sums", body.ints("quarters", *[hidden] * 4), outputs=("ip", "op", "fp", "gp"), axis=0)
    for gate in "iof":
        body.op("Sigmoid", f"{gate}p", outputs=(gate,))
    body.op("Tanh", "gp", outputs=("g",))
    body.op("Mul", "f", "c", outputs=("fc",))
    body.op("Mul", "i", "g", outputs=("ig",))
    body.op("Add", "fc", "ig", outputs=("c_next",))
    body.op("Tanh", "c_next", outputs=("tc",))
    body.op("Mul", "o", "tc", outputs=("h_next",))
    body.op("Transpose", "h_next", outputs=("rows",), perm=[1, 0])
    body.op("Identity", "c", outputs=("c_kept",))
    return body.build(["h_next", "c_next", "rows", "c_kept", "tc", *_GATES])


def _backward_body(recurrent: str) -> GraphProto:
    """(dh, dc, dy, c_prev, tanh c, gates) -> (dh_prev, dc_prev, dp); reads R^T [H, 4H] of the outer graph."""
    body = Body("lstm_cell_backward", ["dh", "dc", "dy", "c_prev", "tc", *_GATES])
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
    for gate in "iof":
        body.op("Mul", f"d{gate}", gate, outputs=(f"s{gate}",))
        body.op("Mul", f"s{gate}", gate, outputs=(f"t{gate}",))
        body.op("Sub", f"s{gate}", f"t{gate}", outputs=(f"p{gate}",))
    body.op("Mul", "g", "g", outputs=("g2",))
    body.op("Mul", "dg", "g2", outputs=("dg2",))
    body.op("Sub", "dg", "dg2", outputs=("pg",))
    body.op("Concat", *(f"p{gate}" for gate in _GATES), outputs=("dp",), axis=0)
    body.op("MatMul", recurrent, "dp", outputs=("dh_prev",))
    body.op("Mul", "dc_all", "f", outputs=("dc_prev",))
    return body.build(["dh_prev", "dc_prev", "dp"])


def _backward(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """The way back through the Scan that `lstm` makes."""
    graph = context.graph
    reverse = node.attrs["scan_input_directions"][0]
    h0, c0, inputs = node.inputs
    _, _, all_h, *kept = node.outputs
    recurrent = node.attrs["body"].node[0].input[0]
    hidden = context.shape(recurrent)[1]
    d_last_h, d_last_c, d_all = (
        scans.grad_or_zero(graph, grad, name) for grad, name in zip(grads[:3], (h0, c0, all_h), strict=True)
    )
    dh0, dc0, dp = graph.op(
        "Scan",
        d_last_h,
        d_last_c,
        d_all,
        *kept,
        outputs=3,
        body=_backward_body(graph.op("Transpose", recurrent, perm=[1, 0])),
        num_scan_inputs=7,
        scan_input_directions=[BACK - reverse] * 7,
        scan_output_axes=[1],
        scan_output_directions=[BACK - reverse],
    )
    if context.needs(recurrent):
        rows = scans.states_before(graph, all_h, h0, reverse)
        context.add(recurrent, graph.op("Gemm", graph.op("Reshape", dp, graph.ints(4 * hidden, -1)), rows))
    return [dh0, dc0, dp if context.needs(inputs) else None]


scans.SCANS[_CELL] = _backward
