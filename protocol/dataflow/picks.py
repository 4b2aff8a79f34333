"""How operators that look entries up by index change what is known of a tensor."""

from collections.abc import Sequence

from fedwright.protocol.dataflow.shapes import axis_of, fixed_numbers
from fedwright.protocol.dataflow.values import Kind, Rows, Value, spoilt, with_dims
from fedwright.protocol.onnx_outline import Node


def gather(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Rows of a table by index, or entries of each sample at a place that stands in the graph."""
    data, index = inputs
    if data.dims is None or index.dims is None:
        return [spoilt(inputs, "Gather")]
    axis = axis_of(node, data)
    dims = (*data.dims[:axis], *index.dims, *data.dims[axis + 1 :])
    places = fixed_numbers(index)
    if data.numbers is not None and len(data.dims) == 1 and places is not None:
        return [Value(data.kind, index.dims, tuple(data.numbers[place] for place in places))]
    if isinstance(data.dims[axis] if axis < len(data.dims) else None, Rows):
        if index.kind == Kind.LINKS and data.kind in (Kind.ROWS, Kind.FIXED, Kind.SUM):
            # The ends of each edge: each edge stands for itself, in an order that the data has.
            return [Value(Kind.ROWS, dims)]
        return [spoilt(inputs, "Gather takes samples by their place")]
    if data.kind == Kind.LINKS and index.kind == Kind.FIXED and index.rows_axis() is None:
        return [data._replace(dims=dims)]
    return [with_dims(inputs, dims, "Gather")]


def gather_elements(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """From each sample the entries that its own index names."""
    data, index = inputs
    axis = axis_of(node, data)
    followed = data.kind in (Kind.ROWS, Kind.FIXED, Kind.SUM) and index.kind == Kind.LINKS
    if followed and data.rows_axis() == index.rows_axis() == axis:
        return [Value(Kind.ROWS, index.dims)]
    if data.dims is None or index.dims is None or not _beside([data, index], axis):
        return [spoilt(inputs, "GatherElements takes samples by their place")]
    return [with_dims(inputs, index.dims, "GatherElements")]


def scatter_elements(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Into each sample at the places that its own index names; or sums of all samples with one index."""
    data, index, new = inputs
    axis = axis_of(node, data)
    if data.dims is None or index.dims is None or new.dims is None:
        return [spoilt(inputs, "ScatterElements")]
    if _beside([data, index, new], axis):
        return [with_dims(inputs, data.dims, "ScatterElements")]
    sums = node.attributes.get("reduction") == "add" and index.rows_axis() == new.rows_axis() == axis
    if sums and index.dims[axis] == new.dims[axis]:
        return [_added(data, index, new, inputs)]
    return [spoilt(inputs, "ScatterElements puts samples to places")]


def _added(data: Value, index: Value, new: Value, inputs: Sequence[Value]) -> Value:
    """Sums of the samples that have the same index: into a table, or along edges."""
    kinds = {value.kind for value in inputs}
    if index.kind == Kind.LINKS and data.rows_axis() is not None and Kind.SINGLE not in kinds | {new.kind}:
        return Value(Kind.ROWS, data.dims)
    followed = data.kind <= Kind.SUM and data.rows_axis() is None
    if followed and {index.kind, new.kind} <= {Kind.ROWS, Kind.FIXED, Kind.SUM}:
        return Value(Kind.SUM, data.dims)
    return spoilt(inputs, "ScatterElements puts samples to places")


def _beside(values: Sequence[Value], axis: int) -> bool:
    """Whether samples stand side by side along one axis of all, which is another than the one looked along."""
    rows = {value.rows_axis() for value in values}
    if len(rows) != 1 or any(value.kind == Kind.LINKS for value in values):
        return False
    at = rows.pop()
    return at is None or (at != axis and len({(value.dims or ())[at] for value in values}) == 1)
