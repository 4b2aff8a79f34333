"""A depthwise convolution over a small image as one dense matrix per channel; plain products have fast gradients.

y[c] = x[c] @ T[c] with T[c] = sum over taps t of w[c, t] S[t]; S[t] is the constant 0/1 matrix [positions in,
positions out] that says which input position tap t of which output position sees. S is a product of one such constant
per axis, which are all that is sent: a device's session multiplies them once, when it folds constants.
"""

from math import prod

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.conv_forms import Geometry
from fedwright.server_runtime.artifacts.autodiff.conv_table import dense_pays
from fedwright.server_runtime.artifacts.autodiff.graph import Array, Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering


@lowering("Conv")
def small_depthwise(graph: Graph, node: Node) -> bool:
    """Replace a depthwise convolution where `conv_table` says that it pays."""
    x, weight = node.inputs[:2]
    sizes = Geometry.of(node, graph.shape(x), graph.shape(weight), graph.shape(node.outputs[0]))
    if not dense_pays(sizes):
        return False
    channels, taps = sizes.channels_in, prod(sizes.kernel)
    rows = graph.op("Reshape", weight, graph.ints(channels, taps))
    flat = graph.op("MatMul", rows, _selectors(graph, sizes))
    matrices = graph.op("Reshape", flat, graph.ints(channels, prod(sizes.size_in), sizes.positions))
    images = graph.op("Transpose", graph.op("Reshape", x, graph.ints(0, 0, -1)), perm=[1, 0, 2])
    results = graph.op("Transpose", graph.op("MatMul", images, matrices), perm=[1, 0, 2])
    y = graph.op("Reshape", results, graph.ints(-1, channels, *sizes.size_out))
    if len(node.inputs) > 2 and node.inputs[2]:
        y = graph.op("Add", y, graph.op("Reshape", node.inputs[2], graph.ints(channels, *[1] * sizes.rank)))
    graph.rename_output(y, node.outputs[0])
    return True


def _selectors(graph: Graph, sizes: Geometry) -> str:
    """S, [taps, positions in * positions out]."""
    total, rank = "", sizes.rank
    for axis in range(rank):
        shape = [1] * (3 * rank)
        shape[axis], shape[rank + axis], shape[2 * rank + axis] = _sizes(sizes, axis)
        along = graph.constant(_seen_along(sizes, axis).reshape(shape), "selector")
        total = graph.op("Mul", total, along) if total else along
    flat = graph.ints(prod(sizes.kernel), prod(sizes.size_in) * sizes.positions)
    return graph.op("Reshape", total, flat)


def _sizes(sizes: Geometry, axis: int) -> tuple[int, int, int]:
    return sizes.kernel[axis], sizes.size_in[axis], sizes.size_out[axis]


def _seen_along(sizes: Geometry, axis: int) -> Array:
    """[tap, place in, place out] along one axis: 1 where this tap of this output sees this input."""
    taps, places, outs = (np.arange(size) for size in _sizes(sizes, axis))
    seen = outs * sizes.stride[axis] + taps[:, None] * sizes.dilation[axis] - sizes.begin[axis]
    found: Array = (seen[:, None, :] == places[None, :, None]).astype(np.float32)
    return found
