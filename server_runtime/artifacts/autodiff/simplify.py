"""Clean-up of an exported forward graph: constants folded, shape arithmetic resolved, linear layers joined to Gemm."""

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.shapes import Seen

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}


def simplify(graph: Graph, seen: dict[str, Seen]) -> None:
    """Fold what two measured runs prove constant, then drop no-ops and join linear layers."""
    _fold(graph, seen)
    _give_pads(graph)
    _resolve_reshapes(graph)
    _drop_identities(graph, seen)
    _join_linear(graph)
    graph.prune()


def _fold(graph: Graph, seen: dict[str, Seen]) -> None:
    """Replace values that depend only on constants and shapes, and were equal in both runs."""
    derived = set(graph.initializers)
    nodes = []
    for node in graph.nodes:
        from_shape = node.op in ("Shape", "Size")
        if node.op not in _RANDOM and (from_shape or all(name in derived for name in node.inputs if name)):
            derived.update(node.outputs)
            if all(seen[name].fixed for name in node.outputs if name):
                for name in node.outputs:
                    if name:
                        graph.initializers[name] = seen[name].first
                continue
        nodes.append(node)
    graph.nodes = nodes


def _give_pads(graph: Graph) -> None:
    """Automatic padding in numbers, which the sizes before and after tell."""
    for node in graph.nodes:
        kind = node.attrs.pop("auto_pad", "NOTSET") if node.op in ("Conv", "MaxPool", "AveragePool") else "NOTSET"
        before, after = graph.shape(node.inputs[0])[2:], graph.shape(node.outputs[0])[2:]
        if kind in ("SAME_UPPER", "SAME_LOWER") and -1 not in (*before, *after):
            kernel = node.attrs.get("kernel_shape") or graph.shape(node.inputs[1])[2:]
            ones = [1] * len(kernel)
            strides, dilations = node.attrs.get("strides", ones), node.attrs.get("dilations", ones)
            totals = [
                max(0, (m - 1) * s + d * (k - 1) + 1 - n)
                for n, m, s, d, k in zip(before, after, strides, dilations, kernel, strict=True)
            ]
            halves, rests = [n // 2 for n in totals], [n - n // 2 for n in totals]
            node.attrs["pads"] = [*halves, *rests] if kind == "SAME_UPPER" else [*rests, *halves]


def _resolve_reshapes(graph: Graph) -> None:
    """A Reshape with one free dimension gets a constant target."""
    for node in graph.nodes:
        if node.op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            shape = graph.shape(node.outputs[0])
            if shape.count(-1) <= 1 and 0 not in shape:
                node.op, node.inputs, node.attrs = "Reshape", [node.inputs[0], graph.ints(*shape)], {}


def _drop_identities(graph: Graph, seen: dict[str, Seen]) -> None:
    """Remove nodes that pass their input on unchanged."""
    alias: dict[str, str] = {}
    nodes = []
    outputs = {value.name for value in graph.outputs}
    for node in graph.nodes:
        node.inputs = [alias.get(name, name) for name in node.inputs]
        if node.outputs[0] not in outputs and (_is_identity(graph, node) or _keeps_all(graph, node, seen)):
            alias[node.outputs[0]] = node.inputs[0]
        else:
            nodes.append(node)
    graph.nodes = nodes


def _is_identity(graph: Graph, node: Node) -> bool:
    if node.op == "Identity":
        return not node.stops
    if node.op == "Cast":
        return graph.dtype(node.inputs[0]) == graph.dtype(node.outputs[0])
    if node.op in ("Reshape", "Expand"):
        return graph.shape(node.inputs[0]) == graph.shape(node.outputs[0])
    if node.op == "Transpose":
        return list(node.attrs.get("perm", ())) == list(range(len(graph.shape(node.inputs[0]))))
    if node.op == "Dropout" and len(node.inputs) > 1:
        ratio = graph.const_value(node.inputs[1])
        return ratio is not None and float(ratio) == 0.0
    return False


def _keeps_all(graph: Graph, node: Node, seen: dict[str, Seen]) -> bool:
    """Is this a forward slice that left nothing out in either run?"""
    if node.op != "Slice" or node.inputs[0] not in seen:
        return False
    before, after = seen[node.inputs[0]], seen[node.outputs[0]]
    steps = graph.const_value(node.inputs[4]) if len(node.inputs) > 4 else None
    forward = len(node.inputs) <= 4 or (steps is not None and bool((steps > 0).all()))
    return forward and before.first.shape == after.first.shape and before.second.shape == after.second.shape


def _join_linear(graph: Graph) -> None:
    """x @ W^T + b on any number of leading axes becomes Reshape, Gemm, Reshape (reshapes are free)."""
    producers, consumers = graph.producers(), graph.consumers()
    outputs = {value.name for value in graph.outputs}
    parameters = {value.name for value in graph.inputs}
    nodes: list[Node] = []
    sums: set[str] = set()
    for node in graph.nodes:
        weight = _transposed_parameter(graph, node, producers, parameters)
        if weight is None:
            if node.outputs[0] not in sums:
                nodes.append(node)
            continue
        bias, result = _bias(graph, node, consumers, outputs, parameters)
        graph.nodes = nodes
        graph.module = node.module
        _append_linear(graph, node.inputs[0], weight, bias, result)
        graph.module = ""
        sums.add(result)
    graph.nodes = nodes


def _transposed_parameter(graph: Graph, node: Node, producers: dict[str, Node], parameters: set[str]) -> str | None:
    """W if the node is MatMul(x, Transpose(W)) with a parameter W and x of at least two axes."""
    if node.op != "MatMul" or len(graph.shape(node.inputs[0])) < 2:
        return None
    transpose = producers.get(node.inputs[1])
    if transpose is None or transpose.op != "Transpose" or transpose.inputs[0] not in parameters:
        return None
    return transpose.inputs[0] if len(graph.shape(transpose.inputs[0])) == 2 else None


def _bias(
    graph: Graph, node: Node, consumers: dict[str, list[Node]], outputs: set[str], parameters: set[str]
) -> tuple[str | None, str]:
    """The bias parameter added right after a product, and the name of the sum (or of the product itself)."""
    product = node.outputs[0]
    readers = consumers.get(product, [])
    if len(readers) == 1 and readers[0].op == "Add" and product not in outputs:
        other = next((name for name in readers[0].inputs if name != product), product)
        if other in parameters and graph.shape(other) == graph.shape(product)[-1:]:
            return other, readers[0].outputs[0]
    return None, product


def _append_linear(graph: Graph, x: str, weight: str, bias: str | None, result: str) -> None:
    shape = graph.shape(x)
    out_shape = graph.shape(result)
    flat = x
    if len(shape) > 2:
        flat = graph.op("Reshape", x, graph.ints(-1, shape[-1]), shape=(-1, shape[-1]))
    product = graph.op("Gemm", flat, weight, *([bias] if bias else []), transB=1)
    if len(shape) > 2:
        if out_shape.count(-1) <= 1:
            target = graph.ints(*out_shape)
        else:
            lead = graph.op("Slice", graph.op("Shape", x), graph.ints(0), graph.ints(-1))
            target = graph.op("Concat", lead, graph.ints(out_shape[-1]), axis=0)
        product = graph.op("Reshape", product, target)
    graph.rename_output(product, result)
