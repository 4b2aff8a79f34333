"""Reads the outline of an ONNX file without the onnx package: versions, operators, inputs, outputs, initializers.

A strict reader of the protobuf wire format. Whatever it does not know, sees twice where once is meant, or
cannot bound is a BadArtifact, so that nothing reaches the runtime that was not looked at here.
"""

import math
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.graph_bounds import Bounds
from fedwright.protocol.onnx_wire import (
    ATTRIBUTE,
    DIMENSION,
    ENTRY,
    GRAPH,
    MASK,
    MODEL,
    NODE,
    OPSET,
    SHAPE,
    TENSOR,
    TENSOR_TYPE,
    TYPE,
    VALUE,
    Record,
    decoded,
    read,
    signed,
    varints,
)

MAX_DEPTH = 3
MAX_NODES = 200_000
MAX_RANK = 8

DTYPES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool"}

_EXTERNAL = 1
_FLOAT = 1
_WHOLE_BYTES = {6: 4, 7: 8, 9: 1}
# Shapes, axes, paddings and scales have no more entries.
_FEW = 64


class Tensor(NamedTuple):
    """A tensor stored in the file. `external` holds what it says about data elsewhere; empty when it holds its own.

    numbers: its values where they are whole numbers and few, as those of a shape are; floats: the same of others.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    size_bytes: int
    external: dict[str, str]
    numbers: tuple[int, ...] | None = None
    floats: tuple[float, ...] | None = None


class OutlineValue(NamedTuple):
    """A graph input or output; -1 is a free dimension, dims None a rank that is not told."""

    name: str
    dtype: str
    dims: tuple[int, ...] | None


class Node(NamedTuple):
    """One operator; of its attributes those that are a number, numbers, a text, a tensor or a graph."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: "dict[str, int | tuple[int, ...] | str | Tensor | Graph]"


@dataclass
class Graph:
    """The operators of a graph in their order, the tensors that it holds, and the names it is given and gives."""

    nodes: list[Node] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass
class Outline:
    """What is in a model. `inner` has the tensors of attributes and subgraphs; operators are (domain, type).

    most_entries: of the largest tensor whose shape follows from the file and the batch. most_trips: how often the body
    of a Scan runs, by lengths that do so too, multiplied over Scans inside one another.
    """

    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    operators: set[tuple[str, str]] = field(default_factory=set)
    nodes: int = 0
    inputs: list[OutlineValue] = field(default_factory=list)
    outputs: list[OutlineValue] = field(default_factory=list)
    initializers: list[Tensor] = field(default_factory=list)
    inner: list[Tensor] = field(default_factory=list)
    most_entries: int = 0
    most_trips: int = 0
    graph: Graph = field(default_factory=Graph)


def scan(data: bytes, *, what: str, batch: int = 1) -> Outline:
    """The outline of a model; BadArtifact names `what` when it cannot be read. batch: what free sizes stand for."""
    try:
        return _scan_model(memoryview(data), batch)
    except (ValueError, UnicodeDecodeError) as err:
        raise BadArtifact(f"{what} is not an ONNX file this release accepts: {err}") from err


def _scan_model(view: memoryview, batch: int) -> Outline:
    model = read(view, MODEL, "model")
    outline = Outline(ir_version=model.number("ir_version", 0))
    for part in model.parts.get("opset_import", []):
        opset = read(part, OPSET, "opset")
        domain = opset.text("domain")
        if domain in outline.opsets:
            raise ValueError(f"operator set {domain!r} is imported twice")
        outline.opsets[domain] = opset.number("version", 0)
    graph = model.part("graph")
    if graph is None:
        raise ValueError("it holds no graph")
    bounds = Bounds()
    for part in read(graph, GRAPH, "graph").parts.get("input", []):
        value = _scan_value(part)
        if value.dims is not None:
            bounds.note(value.name, [batch if size < 0 else size for size in value.dims], None)
    outline.graph = _scan_graph(graph, outline, bounds, depth=0)
    return outline


def _scan_graph(view: memoryview, outline: Outline, bounds: Bounds, *, depth: int) -> Graph:
    if depth > MAX_DEPTH:
        raise ValueError(f"graphs are nested more than {MAX_DEPTH} deep")
    graph = read(view, GRAPH, "graph")
    tensors = [_scan_tensor(part) for part in graph.parts.get("initializer", [])]
    (outline.inner if depth else outline.initializers).extend(tensors)
    for tensor in tensors:
        bounds.note(tensor.name, tensor.dims, tensor.numbers)
    if depth == 0:
        outline.inputs = [_scan_value(part) for part in graph.parts.get("input", [])]
        outline.outputs = [_scan_value(part) for part in graph.parts.get("output", [])]
    found = Graph(tensors=tensors)
    found.inputs, found.outputs = (
        [read(part, VALUE, "value").text("name") for part in graph.parts.get(kind, [])] for kind in ("input", "output")
    )
    for part in graph.parts.get("node", []):
        outline.nodes += 1
        if outline.nodes > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} nodes")
        found.nodes.append(_scan_node(part, outline, bounds, depth=depth))
    return found


def _scan_node(view: memoryview, outline: Outline, bounds: Bounds, *, depth: int) -> Node:
    node = read(view, NODE, "node")
    operator = node.text("op_type")
    outline.operators.add((node.text("domain"), operator))
    inputs, outputs = ([decoded(kind, part) for part in node.parts.get(kind, [])] for kind in ("input", "output"))
    within = bounds
    if operator == "Scan":
        within = bounds.inside(inputs)
        outline.most_trips = max(outline.most_trips, within.trips)
    found = Node(operator, tuple(inputs), tuple(outputs), {})
    for part in node.parts.get("attribute", []):
        attribute = read(part, ATTRIBUTE, "attribute")
        name = attribute.text("name")
        if name in found.attributes:
            raise ValueError(f"an operator {operator} has the attribute {name} twice")
        tensor, graph = attribute.part("t"), attribute.part("g")
        if tensor is not None:
            held = _scan_tensor(tensor)
            outline.inner.append(held)
            found.attributes[name] = held
            if operator == "Constant" and outputs:
                bounds.note(outputs[0], held.dims, held.numbers)
        elif graph is not None:
            found.attributes[name] = _scan_graph(graph, outline, within, depth=depth + 1)
        else:
            _scan_plain(attribute, name, found)
    made = bounds.entries(operator, inputs, outputs, found.attributes)
    outline.most_entries = max(outline.most_entries, made)
    return found


def _scan_plain(attribute: Record, name: str, node: Node) -> None:
    """An attribute that is a number, numbers or a text."""
    if "ints" in attribute.numbers:
        node.attributes[name] = tuple(signed(number) for number in attribute.numbers["ints"])
    elif "i" in attribute.numbers:
        node.attributes[name] = signed(attribute.number("i", 0))
    elif attribute.part("s") is not None:
        node.attributes[name] = attribute.text("s")


def _scan_tensor(view: memoryview) -> Tensor:
    tensor = read(view, TENSOR, "tensor")
    external = {}
    for part in tensor.parts.get("external_data", []):
        entry = read(part, ENTRY, "external data entry")
        external[entry.text("key")] = entry.text("value")
    if tensor.number("data_location", 0) == _EXTERNAL and not external:
        raise ValueError("a tensor says its data is elsewhere but not where")
    dims = _dims([signed(size) for size in tensor.numbers.get("dims", [])])
    stored = ("raw_data", "float_data", "int32_data", "int64_data")
    return Tensor(
        name=tensor.text("name"),
        dtype=_dtype(tensor.number("data_type", 0)),
        dims=dims,
        size_bytes=sum(len(part) for name in stored for part in tensor.parts.get(name, [])),
        external=external,
        numbers=_few_numbers(tensor, dims),
        floats=_few_floats(tensor, dims),
    )


def _few_numbers(tensor: Record, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """The values of a tensor that could be a shape."""
    kind = tensor.number("data_type", 0)
    if kind not in _WHOLE_BYTES or math.prod(dims) > _FEW:
        return None
    raw, size = tensor.part("raw_data"), _WHOLE_BYTES[kind]
    if raw is not None:
        return tuple(int.from_bytes(raw[at : at + size], "little", signed=True) for at in range(0, len(raw), size))
    field_name = "int64_data" if size == 8 else "int32_data"
    return tuple(signed(number) for part in tensor.parts.get(field_name, []) for number in varints(part))


def _few_floats(tensor: Record, dims: tuple[int, ...]) -> tuple[float, ...] | None:
    """The values of a tensor that could be a list of scales."""
    if tensor.number("data_type", 0) != _FLOAT or math.prod(dims) > _FEW:
        return None
    parts = [raw] if (raw := tensor.part("raw_data")) is not None else tensor.parts.get("float_data", [])
    if any(len(part) % 4 for part in parts):
        return None
    return tuple(value for part in parts for (value,) in struct.iter_unpack("<f", part))


def _scan_value(view: memoryview) -> OutlineValue:
    value = read(view, VALUE, "value")
    kind = value.part("type")
    tensor = None if kind is None else read(kind, TYPE, "type").part("tensor_type")
    if tensor is None:
        raise ValueError(f"input or output {value.text('name')!r} is not a tensor")
    described = read(tensor, TENSOR_TYPE, "tensor type")
    shape = described.part("shape")
    dims = None
    if shape is not None:
        parts = [read(part, DIMENSION, "dimension") for part in read(shape, SHAPE, "shape").parts.get("dim", [])]
        known = [signed(part.number("dim_value", -1 & MASK)) for part in parts]
        if any(size < 0 and "dim_value" in part.numbers for size, part in zip(known, parts, strict=True)):
            raise ValueError(f"{value.text('name')!r} has a negative dimension")
        dims = _dims([max(size, -1) for size in known], free=True)
    return OutlineValue(value.text("name"), _dtype(described.number("elem_type", 0)), dims)


def _dims(sizes: list[int], *, free: bool = False) -> tuple[int, ...]:
    if len(sizes) > MAX_RANK or any(size < (-1 if free else 0) or size > 2**31 for size in sizes):
        raise ValueError(f"a tensor has the shape {sizes[: MAX_RANK + 1]}")
    return tuple(sizes)


def _dtype(code: int) -> str:
    if code not in DTYPES:
        raise ValueError(f"element type {code} is not one of {', '.join(DTYPES.values())}")
    return DTYPES[code]
