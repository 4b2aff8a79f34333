"""nn.GRU and nn.RNN: one Scan over time forward, one backward, as for nn.LSTM.

GRU, gates in ONNX order z, r, n, with p_t = W x_t + b and q_t = R_n h_{t-1} + c:
    n_t = tanh(p_n + r q_t)      h_t = n_t + z (h_{t-1} - n_t)
RNN: h_t = f(W x_t + R h_{t-1} + b) with f = tanh or relu.
"""

from onnx import GraphProto

from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering
from fedwright.server_runtime.artifacts.autodiff.rules import scans
from fedwright.server_runtime.artifacts.autodiff.rules.scans import BACK, Body

_GRU, _TANH, _RELU = "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"
# What the way back reads of a step, beside h - n.
_KEPT = "zrnq"


@lowering("GRU")
def gru(graph: Graph, node: Node) -> bool:
    """One Scan per direction; variants that torch does not have stay as they are and are refused later."""
    lengths = node.inputs[4] if len(node.inputs) > 4 else ""
    usual = set(node.attrs) <= {"hidden_size", "direction", "layout", "linear_before_reset"}
    if lengths or not usual or node.attrs.get("layout", 0) or not node.attrs.get("linear_before_reset", 0):
        return False
    results = [_gru_direction(graph, node, index, reverse) for index, reverse in enumerate(scans.directions(node))]
    scans.give_outputs(graph, node, results)
    return True


def _gru_direction(graph: Graph, node: Node, index: int, reverse: int) -> tuple[str, ...]:
    """Hidden states of all steps [T, B, H] and the last one [B, H] of one direction."""
    x, weight, recurrent, bias, _, h0 = (node.inputs + [""] * 6)[:6]
    hidden = node.attrs["hidden_size"]
    offset, inner = None, graph.op("ConstantOfShape", graph.ints(hidden, 1), shape=(hidden, 1))
    if bias:
        rows = scans.pick(graph, bias, index)
        ours, gates, last = graph.op("Split", rows, graph.ints(3 * hidden, 2 * hidden, hidden), outputs=3, axis=0)
        # The gates' two biases are one; that of n inside the product with r stays apart.
        offset = graph.op("Add", ours, graph.op("Pad", gates, graph.ints(0, hidden)))
        inner = graph.op("Reshape", last, graph.ints(hidden, 1), shape=(hidden, 1))
    matrix = scans.pick(graph, weight, index)
    graph.record(matrix, graph.shape(weight)[1:])
    last_h, all_h, *_ = graph.op(
        "Scan",
        scans.start(graph, h0, x, index, hidden),
        scans.input_products(graph, x, matrix, offset),
        outputs=7,
        body=_gru_forward(scans.pick(graph, recurrent, index), inner, hidden),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[reverse],
        scan_output_directions=[reverse] * 6,
    )
    return all_h, graph.op("Transpose", last_h, perm=[1, 0])


def _gru_forward(recurrent: str, inner: str, hidden: int) -> GraphProto:
    """(h, W x + b) -> (h', h' as rows, h - n, gates z r n q); reads R [3H, H] and c [H, 1] of the outer graph."""
    body = Body(_GRU, ["h", "p"])
    body.op("MatMul", recurrent, "h", outputs=("rh",))
    body.op("Split", "rh", body.ints("thirds", *[hidden] * 3), outputs=("hz", "hr", "hn"), axis=0)
    body.op("Split", "p", "thirds", outputs=("xz", "xr", "xn"), axis=0)
    for gate in "zr":
        body.op("Add", f"h{gate}", f"x{gate}", outputs=(f"s{gate}",))
        body.op("Sigmoid", f"s{gate}", outputs=(gate,))
    body.op("Add", "hn", inner, outputs=("q",))
    body.op("Mul", "r", "q", outputs=("rq",))
    body.op("Add", "xn", "rq", outputs=("sn",))
    body.op("Tanh", "sn", outputs=("n",))
    body.op("Sub", "h", "n", outputs=("away",))
    body.op("Mul", "z", "away", outputs=("zaway",))
    body.op("Add", "n", "zaway", outputs=("h_next",))
    body.op("Transpose", "h_next", outputs=("rows",), perm=[1, 0])
    return body.build(["h_next", "rows", "away", *_KEPT])


def _gru_backward_body(recurrent: str) -> GraphProto:
    """(dh, dy, h - n, gates) -> (dh_prev, dp, d(R h)); reads R^T [H, 3H] of the outer graph."""
    body = Body("gru_cell_backward", ["dh", "dy", "away", *_KEPT])
    body.op("Transpose", "dy", outputs=("columns",), perm=[1, 0])
    body.op("Add", "columns", "dh", outputs=("dh_all",))
    body.op("Mul", "dh_all", "away", outputs=("dz",))
    body.op("Mul", "dh_all", "z", outputs=("straight",))
    body.op("Sub", "dh_all", "straight", outputs=("dn",))
    body.op("Mul", "n", "n", outputs=("n2",))
    body.op("Mul", "dn", "n2", outputs=("dn2",))
    body.op("Sub", "dn", "dn2", outputs=("dpn",))
    body.op("Mul", "dpn", "r", outputs=("dq",))
    body.op("Mul", "dpn", "q", outputs=("dr",))
    for gate in "zr":
        body.op("Mul", f"d{gate}", gate, outputs=(f"s{gate}",))
        body.op("Mul", f"s{gate}", gate, outputs=(f"t{gate}",))
        body.op("Sub", f"s{gate}", f"t{gate}", outputs=(f"p{gate}",))
    body.op("Concat", "pz", "pr", "dpn", outputs=("dp",), axis=0)
    body.op("Concat", "pz", "pr", "dq", outputs=("da",), axis=0)
    body.op("MatMul", recurrent, "da", outputs=("through",))
    body.op("Add", "through", "straight", outputs=("dh_prev",))
    return body.build(["dh_prev", "dp", "da"])


def _gru_backward(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """The way back through the Scan that `gru` makes."""
    graph, body = context.graph, node.attrs["body"]
    reverse = node.attrs["scan_input_directions"][0]
    (h0, inputs), (_, all_h, *kept) = node.inputs, node.outputs
    recurrent = body.node[0].input[0]
    inner = next(item.input[1] for item in body.node if list(item.output) == ["q"])
    hidden = context.shape(recurrent)[1]
    dh0, dp, da = graph.op(
        "Scan",
        *(scans.grad_or_zero(graph, grad, name) for grad, name in zip(grads[:2], (h0, all_h), strict=True)),
        *kept,
        outputs=3,
        body=_gru_backward_body(graph.op("Transpose", recurrent, perm=[1, 0])),
        num_scan_inputs=6,
        scan_input_directions=[BACK - reverse] * 6,
        scan_output_axes=[1, 1],
        scan_output_directions=[BACK - reverse] * 2,
    )
    columns = graph.op("Reshape", da, graph.ints(3 * hidden, -1))
    if context.needs(recurrent):
        before = scans.states_before(graph, all_h, h0, reverse)
        context.add(recurrent, graph.op("Gemm", columns, before))
    if context.needs(inner):
        last = graph.op("Slice", columns, graph.ints(2 * hidden), graph.ints(3 * hidden), graph.ints(0))
        context.add(inner, graph.op("ReduceSum", last, graph.ints(1), keepdims=1))
    return [dh0, dp if context.needs(inputs) else None]


@lowering("RNN")
def rnn(graph: Graph, node: Node) -> bool:
    """One Scan per direction; other functions than tanh and relu stay as they are and are refused later."""
    lengths = node.inputs[4] if len(node.inputs) > 4 else ""
    backwards = scans.directions(node)
    kinds = [str(kind) for kind in node.attrs.get("activations", ["Tanh"] * len(backwards))]
    usual = set(node.attrs) <= {"hidden_size", "direction", "layout", "activations"} and set(kinds) <= {"Tanh", "Relu"}
    if lengths or not usual or node.attrs.get("layout", 0):
        return False
    results = [_rnn_direction(graph, node, at, reverse, kinds[at]) for at, reverse in enumerate(backwards)]
    scans.give_outputs(graph, node, results)
    return True


def _rnn_direction(graph: Graph, node: Node, index: int, reverse: int, kind: str) -> tuple[str, ...]:
    """Hidden states of all steps [T, B, H] and the last one [B, H] of one direction."""
    x, weight, recurrent, bias, _, h0 = (node.inputs + [""] * 6)[:6]
    hidden = node.attrs["hidden_size"]
    offset = None
    if bias:
        both = graph.op("Reshape", scans.pick(graph, bias, index), graph.ints(2, hidden))
        offset = graph.op("ReduceSum", both, graph.ints(0), keepdims=0)
    matrix = scans.pick(graph, weight, index)
    graph.record(matrix, graph.shape(weight)[1:])
    last_h, all_h = graph.op(
        "Scan",
        scans.start(graph, h0, x, index, hidden),
        scans.input_products(graph, x, matrix, offset),
        outputs=2,
        body=_rnn_forward(scans.pick(graph, recurrent, index), kind),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[reverse],
        scan_output_directions=[reverse],
    )
    return all_h, graph.op("Transpose", last_h, perm=[1, 0])


def _rnn_forward(recurrent: str, kind: str) -> GraphProto:
    """(h, W x + b) -> (h', h' as rows); reads R [H, H] of the outer graph."""
    body = Body(_TANH if kind == "Tanh" else _RELU, ["h", "p"])
    body.op("MatMul", recurrent, "h", outputs=("rh",))
    body.op("Add", "rh", "p", outputs=("sum",))
    body.op(kind, "sum", outputs=("h_next",))
    body.op("Transpose", "h_next", outputs=("rows",), perm=[1, 0])
    return body.build(["h_next", "rows"])


def _rnn_backward_body(recurrent: str, kind: str) -> GraphProto:
    """(dh, dy, h' as rows) -> (dh_prev, dp); reads R^T of the outer graph."""
    body = Body("rnn_cell_backward", ["dh", "dy", "rows"])
    body.op("Transpose", "dy", outputs=("columns",), perm=[1, 0])
    body.op("Transpose", "rows", outputs=("state",), perm=[1, 0])
    body.op("Add", "columns", "dh", outputs=("dh_all",))
    if kind == _TANH:
        body.op("Mul", "state", "state", outputs=("squares",))
        body.op("Mul", "dh_all", "squares", outputs=("lost",))
        body.op("Sub", "dh_all", "lost", outputs=("dp",))
    else:
        body.op("Sign", "state", outputs=("open",))
        body.op("Mul", "dh_all", "open", outputs=("dp",))
    body.op("MatMul", recurrent, "dp", outputs=("dh_prev",))
    return body.build(["dh_prev", "dp"])


def _rnn_backward(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """The way back through the Scan that `rnn` makes."""
    graph, body = context.graph, node.attrs["body"]
    reverse = node.attrs["scan_input_directions"][0]
    (h0, inputs), (_, all_h) = node.inputs, node.outputs
    recurrent = body.node[0].input[0]
    dh0, dp = graph.op(
        "Scan",
        *(scans.grad_or_zero(graph, grad, name) for grad, name in zip(grads[:2], (h0, all_h), strict=True)),
        all_h,
        outputs=2,
        body=_rnn_backward_body(graph.op("Transpose", recurrent, perm=[1, 0]), body.name),
        num_scan_inputs=2,
        scan_input_directions=[BACK - reverse] * 2,
        scan_output_axes=[1],
        scan_output_directions=[BACK - reverse],
    )
    if context.needs(recurrent):
        before = scans.states_before(graph, all_h, h0, reverse)
        columns = graph.op("Reshape", dp, graph.ints(context.shape(recurrent)[1], -1))
        context.add(recurrent, graph.op("Gemm", columns, before))
    return [dh0, dp if context.needs(inputs) else None]


scans.SCANS.update({_GRU: _gru_backward, _TANH: _rnn_backward, _RELU: _rnn_backward})
