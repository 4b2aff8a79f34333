"""Frozen matrices that a graph holds in few bits (blocks/packing.py) and computes with as float32, when it needs them.

`DequantizeLinear` comes first, because onnxruntime neither folds it when a graph is loaded nor joins two of the same:
a matrix is made again for the backward pass and never stays.
"""

from collections.abc import Iterable

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Shape, Value
from fedwright.server_runtime.blocks.packing import BLOCK, PACKED, SCALES, Packing, columns, is_packed, packed_shapes

# The module that the nodes say they belong to.
UNPACKING = "unpacking"


def pack_frozen(graph: Graph, frozen: Iterable[str], kind: Packing) -> None:
    """Replace inputs of these names by packed ones that the session is given; those that are small stay."""
    if kind == "float32":
        return
    names = set(frozen)
    for value in [v for v in graph.inputs if v.name in names and is_packed(v.shape)]:
        _replace(graph, value.name, value.shape, kind)


def unpack_late(graph: Graph) -> None:
    """Put what unpacks first: onnxruntime runs what comes earlier in a graph later, right before it is read."""
    graph.nodes.sort(key=lambda node: node.module != UNPACKING)


def packed_specs(name: str, shape: Shape, kind: Packing) -> tuple[Value, Value]:
    """What travels in place of a matrix."""
    entries, scales = packed_shapes(shape, kind)
    dtype = np.dtype(np.int8 if kind == "int8" else np.uint8)
    return Value(f"{name}/{PACKED}", entries, dtype), Value(f"{name}/{SCALES}", scales)


def _replace(graph: Graph, name: str, shape: Shape, kind: Packing) -> None:
    entries, scales = packed_specs(name, shape, kind)
    graph.inputs = [value for value in graph.inputs if value.name != name]
    for value in (entries, scales):
        graph.external[value.name] = value
        graph.record(value.name, value.shape, value.dtype)
    readers = graph.consumers().get(name, [])
    lookups = [node for node in readers if _is_lookup(node, name)]
    for node in lookups:
        _look_up(graph, node, entries, scales, shape)
    others = [node for node in readers if node not in lookups]
    if not others:
        return
    rest, graph.nodes = graph.nodes, []
    whole = _unpack(graph, entries, scales, shape)
    graph.nodes += rest
    graph.recompute[whole] = lambda context: _unpack(context.graph, entries, scales, shape)
    for node in others:
        node.inputs = [whole if read == name else read for read in node.inputs]


def _is_lookup(node: Node, name: str) -> bool:
    return node.op == "Gather" and node.inputs[0] == name and node.attrs.get("axis", 0) == 0


def _unpack(graph: Graph, entries: Value, scales: Value, shape: Shape) -> str:
    """The whole matrix."""
    before, graph.module = graph.module, UNPACKING
    if entries.dtype == np.int8:
        made = graph.op("DequantizeLinear", entries.name, scales.name, axis=0, shape=shape)
    else:
        one, zero = graph.scalar(1.0), graph.constant(np.array(0, np.uint8), "z")
        raw = graph.op("DequantizeLinear", entries.name, one, zero, shape=entries.shape)
        made = _halves(graph, raw, scales.name, shape[:1], shape)
    graph.module = before
    return made


def _look_up(graph: Graph, node: Node, entries: Value, scales: Value, shape: Shape) -> None:
    """Rows of a table: gather first, so that only those are unpacked."""
    at, kind = graph.nodes.index(node), entries.dtype
    rest, graph.nodes = graph.nodes[at + 1 :], graph.nodes[:at]
    result, picked = graph.shape(node.outputs[0]), graph.shape(node.inputs[1])
    rows = graph.op("Gather", entries.name, node.inputs[1], axis=0, shape=(*picked, *entries.shape[1:]), dtype=kind)
    numbers = graph.op("Cast", rows, to=1, shape=(*picked, *entries.shape[1:]))
    own = graph.op("Gather", scales.name, node.inputs[1], axis=0, shape=(*picked, *scales.shape[1:]))
    if kind == np.int8:
        ones = graph.ints(*range(len(picked), len(result)))
        spread = graph.op("Unsqueeze", own, ones, shape=(*picked, *(1,) * (len(result) - len(picked))))
        graph.op("Mul", numbers, spread, shape=result)
    else:
        _halves(graph, numbers, own, picked, shape)
    graph.rename_output(graph.nodes[-1].outputs[0], node.outputs[0])
    graph.nodes += rest


def _halves(graph: Graph, numbers: str, scales: str, lead: Shape, shape: Shape) -> str:
    """Bytes as numbers [lead, columns / 2]: the rows [lead, columns] that both halves of each byte are."""
    filled, entries = columns(shape), int(np.prod(shape[1:]))
    half, whole, blocks = (*lead, filled // 2), (*lead, filled), (filled // BLOCK, BLOCK)
    upper = graph.op("Floor", graph.op("Mul", numbers, graph.scalar(1 / 16), shape=half), shape=half)
    lower = graph.op("Sub", numbers, graph.op("Mul", upper, graph.scalar(16.0), shape=half), shape=half)
    both = graph.op("Concat", lower, upper, axis=len(lead), shape=whole)
    centred = graph.op("Sub", both, graph.scalar(8.0), shape=whole)
    apart = graph.op("Reshape", centred, graph.ints(-1, *blocks), shape=(-1, *blocks))
    per_block = graph.op("Reshape", scales, graph.ints(-1, blocks[0], 1), shape=(-1, blocks[0], 1))
    scaled = graph.op("Mul", apart, per_block, shape=(-1, *blocks))
    # Of two reshapes in a row onnxruntime makes one of its own, which it runs early, and with it all that it reads:
    # every matrix would be unpacked before the first is used.
    if filled != entries:
        scaled = graph.op("Reshape", scaled, graph.ints(-1, filled), shape=(-1, filled))
        scaled = graph.op("Slice", scaled, graph.ints(0), graph.ints(entries), graph.ints(1), shape=(-1, entries))
    ends = (*lead, *shape[1:])
    if ends.count(-1) <= 1:
        target = graph.ints(*ends)
    else:
        before = graph.op("Slice", graph.op("Shape", numbers), graph.ints(0), graph.ints(-1))
        target = graph.op("Concat", before, graph.ints(*shape[1:]), axis=0)
    return graph.op("Reshape", scaled, target, shape=ends)
