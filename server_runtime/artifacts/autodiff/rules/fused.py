"""Groups of exported nodes that are better differentiated as one: GELU, ReLU before max pooling, softmax attention."""

import math

from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Composite, Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering


@lowering("Mul")
def gelu(graph: Graph, node: Node) -> bool:
    """x * (1 + erf(x / sqrt 2)) * 0.5, as torch exports nn.GELU.

    The nodes stay (the runtime has one kernel for them) but only x is kept for the backward pass.
    """
    x = _gelu_input(graph, node)
    if x is None:
        return False
    graph.nodes.append(node)
    graph.composites[node.outputs[0]] = Composite((x,), lambda context, dy: [_gelu_gradient(context, x, dy)])
    return True


def _gelu_input(graph: Graph, node: Node) -> str | None:
    """x if the node is the last of a GELU."""
    product, half = node.inputs
    if not _is_number(graph, half, 0.5):
        return None
    makers = {name: made for made in graph.nodes[-6:] for name in made.outputs}
    times = makers.get(product)
    if times is None or times.op != "Mul":
        return None
    x = times.inputs[0]
    plus = makers.get(times.inputs[1])
    erf = makers.get(plus.inputs[0]) if plus is not None and plus.op == "Add" else None
    scaled = makers.get(erf.inputs[0]) if erf is not None and erf.op == "Erf" else None
    if plus is None or scaled is None or scaled.op != "Div" or scaled.inputs[0] != x:
        return None
    fits = _is_number(graph, plus.inputs[1], 1.0) and _is_number(graph, scaled.inputs[1], math.sqrt(2))
    return x if fits else None


def _is_number(graph: Graph, name: str, number: float) -> bool:
    value = graph.const_value(name)
    return value is not None and value.size == 1 and math.isclose(float(value.item()), number, rel_tol=1e-6)


def _gelu_gradient(context: Backward, x: str, dy: str) -> str:
    """dy * (Phi(x) + s exp(-s^2) / sqrt pi) with s = x / sqrt 2 and Phi(x) = (1 + erf s) / 2."""
    graph = context.graph
    s = graph.op("Mul", x, graph.scalar(1 / math.sqrt(2)))
    # erf stays between -1 and 1, so the bounds of HardSigmoid are never met and it is just a line.
    phi = graph.op("HardSigmoid", graph.op("Erf", s), alpha=0.5, beta=0.5)
    exponent = graph.op("Sub", graph.scalar(-0.5 * math.log(math.pi)), graph.op("Mul", s, s))
    bell = graph.op("Mul", s, graph.op("Exp", exponent))
    return graph.op("Mul", dy, graph.op("Add", phi, bell))


@lowering("MaxPool")
def relu_after_pooling(graph: Graph, node: Node) -> bool:
    """MaxPool(Relu(x)) = Relu(MaxPool(x)), on a fraction of the elements."""
    before = next((made for made in reversed(graph.nodes) if node.inputs[0] in made.outputs), None)
    indices = len(node.outputs) > 1 and node.outputs[1]
    if before is None or before.op != "Relu" or graph.uses[node.inputs[0]] != 1 or indices:
        return False
    graph.nodes.remove(before)
    pooled: str = graph.op("MaxPool", before.inputs[0], **node.attrs)
    graph.rename_output(graph.op("Relu", pooled), node.outputs[0])
    return True
