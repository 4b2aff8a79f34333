"""The samples' gradients of what a layer reads beside its input: linear, convolution, embedding, norms, biases."""

from collections.abc import Callable
from math import prod

from fedwright.server_runtime.artifacts.autodiff.conv_forms import Geometry, unfold, weight_gradient_rows
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.private.factors import Factor

Rows = Callable[[str], int]
"""How many rows of a value belong to one sample."""

LayerRule = Callable[[Graph, Node, str, int, Rows], "Factor | None"]
"""(graph, node, gradient of its output, place among its inputs, rows) -> that input's factor; None: there is none."""


def product_factor(
    graph: Graph, left: str, right: str, *, widths: tuple[int, ...], positions: int, flip: bool
) -> Factor:
    """left [B T, k], right [B T, o]: the products of a linear layer over `positions` of a sample."""
    inner, outer = widths
    shape = (inner, outer) if flip else (outer, inner)
    if positions == 1:
        return Factor("outer", left, right, shape, flip)
    cubes = [
        value if len(graph.shape(value)) == 3 else graph.op("Reshape", value, graph.ints(-1, positions, width))
        for value, width in ((left, inner), (right, outer))
    ]
    factor = Factor("sequence", cubes[0], cubes[1], shape, flip, (inner, outer))
    # A matrix of positions costs less than the gradient itself, or it is not worth having.
    return factor if positions**2 < inner * outer // 2 else factor.as_rows(graph)


def gemm(graph: Graph, node: Node, grad: str, place: int, rows: Rows) -> Factor | None:
    """Y = A B' + C."""
    if node.attrs.get("alpha", 1.0) != 1.0 or node.attrs.get("beta", 1.0) != 1.0 or node.attrs.get("transA", 0):
        return None
    positions, flip = rows(node.outputs[0]), not node.attrs.get("transB", 0)
    weight = graph.shape(node.inputs[1])
    if place == 1:
        inner, outer = weight if flip else weight[::-1]
        graph.record(grad, (-1, outer))
        return product_factor(graph, node.inputs[0], grad, widths=(inner, outer), positions=positions, flip=flip)
    size = graph.shape(node.inputs[2])
    if place != 2 or prod(size) != size[-1]:
        return None
    return bias_rows(graph, grad, positions, size)


def bias_rows(graph: Graph, grad: str, positions: int, shape: tuple[int, ...]) -> Factor:
    """grad [B T, o] summed over positions."""
    made = grad
    if positions > 1:
        cube = graph.op("Reshape", grad, graph.ints(-1, positions, shape[-1]))
        made = graph.op("ReduceSum", cube, graph.ints(1), keepdims=0)
    return Factor("rows", made, shape=shape)


def matmul(graph: Graph, node: Node, grad: str, place: int, rows: Rows) -> Factor | None:
    """Y = A B with a matrix B."""
    a, weight = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    if place != 1 or len(weight) != 2 or not 2 <= len(a) <= 3 or a[0] != -1 or -1 in a[1:]:
        return None
    positions = rows(node.outputs[0]) * (a[1] if len(a) == 3 else 1)
    if len(a) == 3 and rows(node.outputs[0]) != 1:
        return None
    graph.record(grad, (*a[:-1], weight[1]))
    return product_factor(graph, node.inputs[0], grad, widths=weight, positions=positions, flip=True)


def conv(graph: Graph, node: Node, grad: str, place: int, rows: Rows) -> Factor | None:
    """dW of every sample by itself, or its norm by positions where kernels are large and maps small."""
    x, weight = node.inputs[:2]
    sizes = Geometry.of(node, graph.shape(x), graph.shape(weight), graph.shape(node.outputs[0]))
    if place == 2:
        spatial = graph.ints(*range(2, 2 + sizes.rank))
        return Factor("rows", graph.op("ReduceSum", grad, spatial, keepdims=0), shape=graph.shape(node.inputs[2]))
    inner = sizes.channels_in * prod(sizes.kernel)
    if sizes.group > 1 or sizes.positions**2 >= inner * sizes.channels_out // 2:
        return Factor("rows", weight_gradient_rows(graph, sizes, x, grad), shape=graph.shape(weight))
    seen = graph.op("Transpose", unfold(graph, sizes, x), perm=[0, 2, 1])
    flat = graph.op("Reshape", grad, graph.ints(-1, sizes.channels_out, sizes.positions))
    turned = graph.op("Transpose", flat, perm=[0, 2, 1])
    return Factor("sequence", seen, turned, graph.shape(weight), widths=(inner, sizes.channels_out))


def gather(graph: Graph, node: Node, grad: str, place: int, rows: Rows) -> Factor | None:
    """An embedding: rows of a table at the places [B, T] or [B]."""
    places, table = graph.shape(node.inputs[1]), graph.shape(node.inputs[0])
    if place != 0 or node.attrs.get("axis", 0) != 0 or len(table) != 2 or places[:1] != (-1,) or len(places) > 2:
        return None
    ids = node.inputs[1]
    if len(places) == 1:
        ids, grad = (graph.op("Unsqueeze", value, graph.ints(1)) for value in (ids, grad))
    return Factor("tokens", ids, grad, table)


def spread(graph: Graph, node: Node, grad: str, place: int, rows: Rows) -> Factor | None:
    """Add, Sub, Mul and Expand of a value that is the same for all samples."""
    value, out = node.inputs[place], graph.shape(node.outputs[0])
    other = None
    if node.op == "Mul":
        other = node.inputs[1 - place]
        grad = graph.op("Mul", grad, other)
    elif node.op == "Sub" and place == 1:
        grad = graph.op("Neg", grad)
    shape = (1,) * (len(out) - len(graph.shape(value))) + graph.shape(value)
    if out[0] != -1 or -1 in out[1:] or shape[0] != 1 or rows(node.outputs[0]) != 1:
        return None
    axes = [axis for axis in range(1, len(out)) if shape[axis] == 1 and out[axis] != 1]
    if axes:
        grad = graph.op("ReduceSum", grad, graph.ints(*axes), keepdims=0)
    size = prod(shape)
    made = graph.op("Reshape", grad, graph.ints(-1, size))
    return Factor("rows", made, shape=graph.shape(value))


def layer_norm(graph: Graph, node: Node, grad: str, place: int, rows: Rows) -> Factor | None:
    """y = u gain + bias with the normalised u, which is made again of the statistics that the node keeps."""
    shape, out = graph.shape(node.inputs[place]), graph.shape(node.outputs[0])
    axis = node.attrs.get("axis", -1) % len(out)
    if place == 0 or rows(node.outputs[0]) != 1 or len(shape) != len(out) - axis:
        return None
    if place == 1:
        mean, inverse = node.outputs[1:3]
        grad = graph.op("Mul", grad, graph.op("Mul", graph.op("Sub", node.inputs[0], mean), inverse))
    if axis > 1:
        grad = graph.op("ReduceSum", grad, graph.ints(*range(1, axis)), keepdims=0)
    return Factor("rows", graph.op("Reshape", grad, graph.ints(-1, prod(shape))), shape=shape)


LAYERS: dict[str, LayerRule] = {
    "Gemm": gemm,
    "MatMul": matmul,
    "Conv": conv,
    "Gather": gather,
    "LayerNormalization": layer_norm,
    **dict.fromkeys(("Add", "Sub", "Mul", "Expand"), spread),
}
