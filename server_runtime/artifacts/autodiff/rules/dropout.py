"""Dropout with a mask that depends only on the step's seed and the element's place, in exact integer arithmetic.

Every row i (batch index) and every place j in a row get a hashed number below 2^30; the mask of (i, j) keeps the
element when (row_i + place_j)^2 mod (2^31 - 1) is at least ratio * (2^31 - 1).
"""

import numpy as np

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Value
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering

SEED = "seed"
_PRIME = 2**31 - 1
_HALF = 2**30
_FACTORS = (1_103_515_245, 1_597_334_677, 747_796_405, 1_283_640_077)


@lowering("Dropout")
def dropout(graph: Graph, node: Node) -> bool:
    """y = x mask / (1 - ratio)"""
    ratio = graph.const_value(node.inputs[1]) if len(node.inputs) > 1 else np.array(0.5)
    active = graph.const_value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.array(True)
    if ratio is None or active is None:
        raise UnsupportedOperator("Dropout with a computed ratio", node.name, node.module)
    p, x = float(ratio), node.inputs[0]
    if not bool(active) or p <= 0.0:
        graph.rename_output(graph.op("Identity", x), node.outputs[0])
        return True
    if not any(value.name == SEED for value in graph.inputs):
        graph.add_input(Value(SEED, (), np.dtype(np.int64)))
    number = sum(other.op == "Cast" and other.name.startswith("dropout/") for other in graph.nodes)
    drawn = _draw(graph, x, number)
    kept = graph.op("GreaterOrEqual", drawn, _int(graph, min(_PRIME, round(p * _PRIME))))
    mask = graph.op("Cast", kept, to=1)
    graph.nodes[-1].name = f"dropout/{mask}"
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    scaled = graph.op("Mul", mask, graph.scalar(scale))
    graph.rename_output(graph.op("Mul", x, scaled), node.outputs[0])
    return True


def _int(graph: Graph, value: int) -> str:
    return graph.constant(np.array(value, np.int64), "n")


def _draw(graph: Graph, x: str, number: int) -> str:
    """A number below 2^31 - 1 for every element of x."""
    shape = graph.shape(x)
    seed = graph.op("Mod", SEED, _int(graph, _PRIME))
    mixed = graph.op("Add", graph.op("Mul", seed, _int(graph, _FACTORS[0])), _int(graph, _FACTORS[3] * (number + 1)))
    if shape.count(-1) > 1:
        rows = _hash(graph, graph.op("Size", x), mixed)
        return _square(graph, graph.op("Reshape", rows, graph.op("Shape", x)))
    free = shape.index(-1) if -1 in shape else 0
    count = graph.op("Gather", graph.op("Shape", x), _int(graph, free))
    rows = _hash(graph, count, mixed)
    rows = graph.op("Reshape", rows, graph.ints(*(-1 if i == free else 1 for i in range(len(shape)))))
    rest = [1 if i == free else dim for i, dim in enumerate(shape)]
    # constant, so the runtime computes it once when it loads the graph
    places = _hash(graph, _int(graph, int(np.prod(rest))), _int(graph, _FACTORS[2] * (number + 1)))
    return _square(graph, graph.op("Add", rows, graph.op("Reshape", places, graph.ints(*rest))))


def _hash(graph: Graph, count: str, start: str) -> str:
    """Hashes below 2^30 of 0, 1, ... count - 1 from a starting number."""
    start = _square(graph, graph.op("Mod", start, _int(graph, _PRIME)))
    index = graph.op("Range", _int(graph, 0), count, _int(graph, 1))
    value = graph.op("Add", graph.op("Mul", index, _int(graph, _FACTORS[1])), start)
    for factor in _FACTORS[1:3]:
        value = _square(graph, graph.op("Mod", value, _int(graph, _PRIME)))
        value = graph.op("Add", graph.op("Mul", value, _int(graph, factor)), _int(graph, factor))
    return graph.op("Mod", value, _int(graph, _HALF))


def _square(graph: Graph, value: str) -> str:
    return graph.op("Mod", graph.op("Mul", value, value), _int(graph, _PRIME))
