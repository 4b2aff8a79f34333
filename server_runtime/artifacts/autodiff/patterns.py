"""Groups of forward nodes that are better differentiated as one: GELU, attention, scaled products.

The gradient of a group reads its inputs and outputs only, so the runtime may fuse the forward nodes and free what
is between them.
"""

import math

from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Composite, Graph, Node

_CLOSE = 1e-5


def mark_patterns(graph: Graph) -> None:
    """Move scales in front of products and mark the groups that the graph has."""
    _move_scales(graph)
    readers = graph.consumers()
    producers = graph.producers()
    outputs = {value.name for value in graph.outputs}
    for node in graph.nodes:
        if node.op == "Erf":
            _mark_gelu(graph, node, producers, readers)
        elif node.op == "Softmax" and node.outputs[0] not in outputs:
            _mark_attention(graph, node, readers)


def _scalar(graph: Graph, name: str) -> float | None:
    value = graph.const_value(name)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _is(value: float | None, wanted: float) -> bool:
    return value is not None and abs(value - wanted) < _CLOSE * abs(wanted)


def _only_reader(readers: dict[str, list[Node]], name: str, op: str) -> Node | None:
    found = readers.get(name, [])
    return found[0] if len(found) == 1 and found[0].op == op else None


def _other(node: Node, name: str) -> str:
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]


def _mark_gelu(graph: Graph, erf: Node, producers: dict[str, Node], readers: dict[str, list[Node]]) -> None:
    """x * (1 + erf(x / sqrt 2)) * 0.5, in the order in which torch writes it."""
    inner = producers.get(erf.inputs[0])
    if inner is None or not (
        (inner.op == "Div" and _is(_scalar(graph, inner.inputs[1]), math.sqrt(2)))
        or (inner.op == "Mul" and _is(_scalar(graph, inner.inputs[1]), math.sqrt(0.5)))
    ):
        return
    x = inner.inputs[0]
    shifted = _only_reader(readers, erf.outputs[0], "Add")
    product = _only_reader(readers, shifted.outputs[0], "Mul") if shifted else None
    halved = _only_reader(readers, product.outputs[0], "Mul") if product else None
    if shifted is None or product is None or halved is None:
        return
    one = _scalar(graph, _other(shifted, erf.outputs[0]))
    half = _scalar(graph, _other(halved, product.outputs[0]))
    if _is(one, 1.0) and _is(half, 0.5) and _other(product, shifted.outputs[0]) == x:
        _add_gelu(graph, x, halved.outputs[0], readers)


def _add_gelu(graph: Graph, x: str, y: str, readers: dict[str, list[Node]]) -> None:
    """Differentiate y = gelu(x) from x alone; if only a matrix product reads y, do not even keep y for it."""
    shares: dict[Backward, tuple[str, str]] = {}

    def halves(ctx: Backward) -> tuple[str, str]:
        """h = x / sqrt 2 and (1 + erf(h)) / 2, made once for both uses."""
        if ctx not in shares:
            g = ctx.graph
            h = g.op("Mul", x, g.scalar(math.sqrt(0.5)))
            # HardSigmoid is the affine map here, which saves a pass over memory
            shares[ctx] = h, g.op("HardSigmoid", g.op("Erf", h), alpha=0.5, beta=0.5)
        return shares[ctx]

    graph.composites[y] = Composite((x,), lambda ctx, dy: [_gelu_gradient(ctx, *halves(ctx), dy)])
    reshape = _only_reader(readers, y, "Reshape")
    if reshape is not None and _only_reader(readers, reshape.outputs[0], "Gemm"):
        target = reshape.inputs[1]
        graph.recompute[reshape.outputs[0]] = lambda ctx: str(
            ctx.graph.op("Reshape", ctx.graph.op("Mul", x, halves(ctx)[1]), target)
        )
    elif _only_reader(readers, y, "Gemm"):
        graph.recompute[y] = lambda ctx: str(ctx.graph.op("Mul", x, halves(ctx)[1]))


def _gelu_gradient(ctx: Backward, h: str, share: str, dy: str) -> str:
    """dx = dy ((1 + erf(h)) / 2 + h exp(-h^2) / sqrt(pi)) with h = x / sqrt 2"""
    g = ctx.graph
    # the factor 1/sqrt(pi) goes into the exponent, which saves a pass over memory
    bell = g.op("Exp", g.op("Sub", g.scalar(-0.5 * math.log(math.pi)), g.op("Mul", h, h)))
    return g.op("Mul", dy, g.op("Add", share, g.op("Mul", h, bell)))


def _mark_attention(graph: Graph, softmax: Node, readers: dict[str, list[Node]]) -> None:
    """softmax(s) @ v where nothing else reads the weights."""
    weights, scores = softmax.outputs[0], softmax.inputs[0]
    product = _only_reader(readers, weights, "MatMul")
    shape = graph.shape(weights)
    if product is None or product.inputs[0] != weights or product.inputs[1] == weights:
        return
    values = product.inputs[1]
    last = int(softmax.attrs.get("axis", -1)) in (-1, len(shape) - 1)
    if last and len(shape) > 2 and graph.shape(values)[:-2] == shape[:-2]:
        out = product.outputs[0]
        graph.composites[out] = Composite(
            (scores, values), lambda ctx, dy: _attention_gradient(ctx, (weights, values, out), dy)
        )


def _attention_gradient(ctx: Backward, names: tuple[str, str, str], dy: str) -> list[str | None]:
    """ds = p (dy v' - sum(out dy)): the row sum of p dp is that of out dy, which is much shorter."""
    g, (weights, values, out) = ctx.graph, names
    rank = len(ctx.shape(values))
    swap = [*range(rank - 2), rank - 1, rank - 2]
    d_values = g.op("MatMul", g.op("Transpose", weights, perm=swap), dy)
    d_weights = g.op("MatMul", dy, g.op("Transpose", values, perm=swap))
    total = g.op("ReduceSum", g.op("Mul", out, dy), g.ints(-1), keepdims=1)
    return [g.op("Mul", weights, g.op("Sub", d_weights, total)), d_values]


def _move_scales(graph: Graph) -> None:
    """c (a @ b) becomes (c a) @ b when a has fewer entries than the product."""
    readers = graph.consumers()
    scales: dict[str, tuple[Node, float]] = {}
    for node in graph.nodes:
        if node.op == "MatMul":
            scaled = _scale_of(graph, node, readers)
            if scaled is not None:
                scales[node.outputs[0]] = scaled
    nodes: list[Node] = []
    dropped = {node.outputs[0] for node, _ in scales.values()}
    for node in graph.nodes:
        if node.op == "MatMul" and node.outputs[0] in scales:
            scale_node, factor = scales[node.outputs[0]]
            a = node.inputs[0]
            graph.nodes = nodes
            graph.module = node.module
            node.inputs[0] = graph.op("Mul", a, graph.scalar(factor), shape=graph.shape(a))
            node.outputs = list(scale_node.outputs)
        if node.outputs[0] not in dropped or node.op == "MatMul":
            nodes.append(node)
    graph.nodes = nodes
    graph.module = ""


def _scale_of(graph: Graph, product: Node, readers: dict[str, list[Node]]) -> tuple[Node, float] | None:
    """The node that scales this product, and by how much."""
    name = product.outputs[0]
    if graph.shape(product.inputs[0])[-1:] >= graph.shape(name)[-1:]:
        return None
    for op in ("Mul", "Div"):
        node = _only_reader(readers, name, op)
        if node is not None and (op == "Mul" or node.inputs[0] == name):
            factor = _scalar(graph, _other(node, name))
            if factor:
                return node, factor if op == "Mul" else 1.0 / factor
    return None
