"""A depthwise convolution over a small image as one dense matrix per channel; plain products have fast gradients.

y[c] = x[c] @ T[c] with T[c] = sum over taps t of w[c, t] S[t]; S[t] is the constant 0/1 matrix [positions in,
positions out] that says which input position tap t of which output position sees.
"""

from itertools import product
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
    flat = graph.op("MatMul", rows, graph.constant(_selectors(sizes).reshape(taps, -1), "selectors"))
    matrices = graph.op("Reshape", flat, graph.ints(channels, prod(sizes.size_in), sizes.positions))
    images = graph.op("Transpose", graph.op("Reshape", x, graph.ints(0, 0, -1)), perm=[1, 0, 2])
    results = graph.op("Transpose", graph.op("MatMul", images, matrices), perm=[1, 0, 2])
    y = graph.op("Reshape", results, graph.ints(-1, channels, *sizes.size_out))
    if len(node.inputs) > 2 and node.inputs[2]:
        y = graph.op("Add", y, graph.op("Reshape", node.inputs[2], graph.ints(channels, *[1] * sizes.rank)))
    graph.rename_output(y, node.outputs[0])
    return True


def _selectors(sizes: Geometry) -> Array:
    """S[t], [taps, *size_in, *size_out]."""
    found = np.zeros((len(sizes.taps), *sizes.size_in, *sizes.size_out), np.float32)
    for index, tap in enumerate(sizes.taps):
        for out in product(*(range(size) for size in sizes.size_out)):
            place = tuple(
                o * s + t * d - b
                for o, s, t, d, b in zip(out, sizes.stride, tap, sizes.dilation, sizes.begin, strict=True)
            )
            if all(0 <= p < size for p, size in zip(place, sizes.size_in, strict=True)):
                found[(index, *place, *out)] = 1.0
    return found
