"""Gradients of indexing. Sums over repeated indices use ScatterElements: ScatterND is wrong with several threads."""

import numpy as np

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, BackwardStep, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.lowering import lowering
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only


def _zeros_like(ctx: Backward, name: str) -> str:
    shape = ctx.shape(name)
    target = ctx.graph.ints(*shape) if -1 not in shape else ctx.graph.op("Shape", name)
    return ctx.graph.op("ConstantOfShape", target)


@rule("Gather")
def gather(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dy added back at the indices it was read from"""
    x, indices = node.inputs
    axis = int(node.attrs.get("axis", 0)) % len(ctx.shape(x))
    size, known = ctx.shape(x)[axis], ctx.const_value(indices)
    if known is not None and size != -1 and _is_range(known % size):
        first = int(np.ravel(known)[0]) % size
        part = only(grads)
        if known.ndim == 0:
            part = ctx.graph.op("Unsqueeze", part, ctx.graph.ints(axis))
        ctx.add_piece(x, BackwardStep(part, axis, first, first + known.size))
        return [None, None]
    return [_scatter_rows(ctx, node, axis, only(grads)), None]


def _is_range(indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bool:
    return indices.ndim <= 1 and bool(np.all(np.diff(np.ravel(indices)) == 1)) and indices.size > 0


def _scatter_rows(ctx: Backward, node: Node, axis: int, dy: str) -> str:
    """Sum slices of dy into a zero tensor along one axis."""
    g, (x, indices) = ctx.graph, node.inputs
    shape, rank = ctx.shape(x), len(ctx.shape(x))
    if len(ctx.shape(indices)) != 1:
        rest = [*shape[:axis], *shape[axis + 1 :]]
        if -1 not in rest:
            target = g.ints(*shape[:axis], -1, *shape[axis + 1 :])
        else:
            whole = g.op("Shape", x)
            parts = [g.op("Slice", whole, g.ints(0), g.ints(axis)), g.ints(-1)]
            parts.append(g.op("Slice", whole, g.ints(axis + 1), g.ints(rank)))
            target = g.op("Concat", *parts, axis=0)
        dy = g.op("Reshape", dy, target)
    column = g.op("Reshape", indices, g.ints(*(-1 if i == axis else 1 for i in range(rank))))
    spread = g.op("Expand", column, g.op("Shape", dy))
    return g.op("ScatterElements", _zeros_like(ctx, x), spread, dy, axis=axis, reduction="add")


@rule("GatherElements")
def gather_elements(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = zeros with dy added at the indices"""
    x, indices = node.inputs
    axis = int(node.attrs.get("axis", 0))
    zeros = _zeros_like(ctx, x)
    return [ctx.graph.op("ScatterElements", zeros, indices, only(grads), axis=axis, reduction="add"), None]


@rule("TopK")
def top_k(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """dx = zeros with dy at the entries that were picked"""
    x, indices = node.inputs[0], node.outputs[1]
    axis = int(node.attrs.get("axis", -1))
    return [ctx.graph.op("ScatterElements", _zeros_like(ctx, x), indices, only(grads), axis=axis), None]


@rule("ScatterElements")
def scatter_elements(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Written entries pass dy to the updates; overwritten ones none to the data"""
    g, (data, indices, updates), dy = ctx.graph, node.inputs, only(grads)
    axis, reduction = int(node.attrs.get("axis", 0)), node.attrs.get("reduction", "none")
    if reduction not in ("none", "add"):
        raise UnsupportedOperator(f"ScatterElements with reduction {reduction}", node.name, node.module)
    d_data = dy
    if reduction == "none" and ctx.needs(data):
        d_data = g.op("ScatterElements", dy, indices, _zeros_like(ctx, updates), axis=axis)
    d_updates = g.op("GatherElements", dy, indices, axis=axis) if ctx.needs(updates) else None
    return [d_data, None, d_updates]


@rule("GatherND")
def gather_nd(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """As Gather, on the rows of x flattened over the indexed axes"""
    if int(node.attrs.get("batch_dims", 0)):
        raise UnsupportedOperator("GatherND with batch_dims", node.name, node.module)
    g, (x, indices) = ctx.graph, node.inputs
    flat = _flat_rows(g, node, x, indices)
    width = int(np.prod(ctx.shape(x)[ctx.shape(indices)[-1] :]))
    rows = g.op("Reshape", only(grads), g.ints(-1, width))
    column = g.op("Expand", g.op("Unsqueeze", flat, g.ints(1)), g.op("Shape", rows))
    zeros = g.op("Reshape", _zeros_like(ctx, x), g.ints(-1, width))
    total = g.op("ScatterElements", zeros, column, rows, axis=0, reduction="add")
    return [ctx.reshape_like(total, x), None]


def _flat_rows(graph: Graph, node: Node, data: str, indices: str) -> str:
    """Row numbers of index tuples in `data` flattened over the indexed axes."""
    depth = graph.shape(indices)[-1]
    inner = graph.shape(data)[1:depth]
    if -1 in inner or -1 in graph.shape(data)[depth:]:
        raise UnsupportedOperator(f"{node.op} across the batch", node.name, node.module)
    strides = np.array([int(np.prod(inner[i:])) for i in range(depth)], dtype=np.int64)
    rows = graph.op("Reshape", indices, graph.ints(-1, depth))
    return graph.op("ReduceSum", graph.op("Mul", rows, graph.constant(strides)), graph.ints(1), keepdims=0)


@lowering("ScatterND")
def scatter_nd(graph: Graph, node: Node) -> bool:
    """ScatterND as ScatterElements over flattened rows."""
    data, indices, updates = node.inputs
    reduction = node.attrs.get("reduction", "none")
    shape = graph.shape(data)
    flat = _flat_rows(graph, node, data, indices)
    width = int(np.prod(shape[graph.shape(indices)[-1] :]))
    rows = graph.op("Reshape", updates, graph.ints(-1, width))
    column = graph.op("Expand", graph.op("Unsqueeze", flat, graph.ints(1)), graph.op("Shape", rows))
    base = graph.op("Reshape", data, graph.ints(-1, width))
    total = graph.op("ScatterElements", base, column, rows, axis=0, reduction=reduction)
    result = graph.op("Reshape", total, graph.ints(*shape))
    graph.rename_output(result, node.outputs[0])
    return True
