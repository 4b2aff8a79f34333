"""Reads the outline of an ONNX file without the onnx package: versions, operators, inputs, outputs, initializers.

A strict reader of the protobuf wire format. Whatever it does not know, sees twice where once is meant, or
cannot bound is a BadArtifact, so that nothing reaches the runtime that was not looked at here.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.graph_bounds import Bounds

MAX_DEPTH = 3
MAX_NODES = 200_000
MAX_NAME_BYTES = 1024
MAX_RANK = 8

DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool"}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1
_INT64 = 7


class Tensor(NamedTuple):
    """A tensor stored in the file. `external` holds what it says about data elsewhere; empty when it holds its own.

    numbers: its values where they are whole numbers and few, as those of a shape are.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    size_bytes: int
    external: dict[str, str]
    numbers: tuple[int, ...] | None = None


class OutlineValue(NamedTuple):
    """A graph input or output; -1 is a free dimension, dims None a rank that is not told."""

    name: str
    dtype: str
    dims: tuple[int, ...] | None


@dataclass
class Outline:
    """What is in a model. `inner` has the tensors of attributes and subgraphs; operators are (domain, type).

    most_entries: of the largest tensor whose shape stands in the file. most_trips: how often the body of a Scan runs,
    by the lengths that stand in the file, multiplied over Scans inside one another.
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


# What a field may hold: one number, numbers (packed or not), one text or message, several, names that only have to
# be names, or what is not looked at.
_N, _NS, _T, _TS, _NAMES, _ANY = "number", "numbers", "text", "texts", "names", "anything"

# Field numbers of onnx.proto. What is missing here is refused: training_info, functions, sparse tensors, sequences.
_Layout = dict[int, tuple[str, str]]
_MODEL: _Layout = {
    1: ("ir_version", _N),
    2: ("producer_name", _ANY),
    3: ("producer_version", _ANY),
    4: ("domain", _ANY),
    5: ("model_version", _ANY),
    6: ("doc_string", _ANY),
    7: ("graph", _T),
    8: ("opset_import", _TS),
    14: ("metadata_props", _ANY),
}
_OPSET: _Layout = {1: ("domain", _T), 2: ("version", _N)}
_GRAPH: _Layout = {
    1: ("node", _TS),
    2: ("name", _NAMES),
    5: ("initializer", _TS),
    10: ("doc_string", _ANY),
    11: ("input", _TS),
    12: ("output", _TS),
    13: ("value_info", _ANY),
    16: ("metadata_props", _ANY),
}
_NODE: _Layout = {
    1: ("input", _TS),
    2: ("output", _TS),
    3: ("name", _NAMES),
    4: ("op_type", _T),
    5: ("attribute", _TS),
    6: ("doc_string", _ANY),
    7: ("domain", _T),
    9: ("metadata_props", _ANY),
}
_ATTRIBUTE: _Layout = {
    1: ("name", _T),
    2: ("f", _ANY),
    3: ("i", _ANY),
    4: ("s", _ANY),
    5: ("t", _T),
    6: ("g", _T),
    7: ("floats", _ANY),
    8: ("ints", _ANY),
    9: ("strings", _ANY),
    13: ("doc_string", _ANY),
    20: ("type", _N),
}
_TENSOR: _Layout = {
    1: ("dims", _NS),
    2: ("data_type", _N),
    4: ("float_data", _TS),
    5: ("int32_data", _TS),
    7: ("int64_data", _TS),
    8: ("name", _T),
    9: ("raw_data", _T),
    12: ("doc_string", _ANY),
    13: ("external_data", _TS),
    14: ("data_location", _N),
}
_ENTRY: _Layout = {1: ("key", _T), 2: ("value", _T)}
_VALUE: _Layout = {1: ("name", _T), 2: ("type", _T), 3: ("doc_string", _ANY), 4: ("metadata_props", _ANY)}
_TYPE: _Layout = {1: ("tensor_type", _T), 6: ("denotation", _ANY)}
_TENSOR_TYPE: _Layout = {1: ("elem_type", _N), 2: ("shape", _T)}
_SHAPE: _Layout = {1: ("dim", _TS)}
_DIMENSION: _Layout = {1: ("dim_value", _N), 2: ("dim_param", _ANY), 3: ("denotation", _ANY)}


class _Record(NamedTuple):
    """One message: the numbers and the byte ranges of its known fields."""

    numbers: dict[str, list[int]]
    parts: dict[str, list[memoryview]]

    def number(self, name: str, default: int) -> int:
        return self.numbers.get(name, [default])[0]

    def part(self, name: str) -> memoryview | None:
        return self.parts.get(name, [None])[0]

    def text(self, name: str) -> str:
        found = self.part(name)
        if found is None:
            return ""
        return _decoded(name, found)


def _decoded(name: str, part: memoryview) -> str:
    if len(part) > MAX_NAME_BYTES:
        raise ValueError(f"a {name} of {len(part)} bytes")
    return str(part, "utf-8")


def scan(data: bytes, *, what: str) -> Outline:
    """The outline of a model; BadArtifact names `what` when it cannot be read."""
    try:
        return _scan_model(memoryview(data))
    except (ValueError, UnicodeDecodeError) as err:
        raise BadArtifact(f"{what} is not an ONNX file this release accepts: {err}") from err


def _scan_model(view: memoryview) -> Outline:
    model = _read(view, _MODEL, "model")
    outline = Outline(ir_version=model.number("ir_version", 0))
    for part in model.parts.get("opset_import", []):
        opset = _read(part, _OPSET, "opset")
        domain = opset.text("domain")
        if domain in outline.opsets:
            raise ValueError(f"operator set {domain!r} is imported twice")
        outline.opsets[domain] = opset.number("version", 0)
    graph = model.part("graph")
    if graph is None:
        raise ValueError("it holds no graph")
    _scan_graph(graph, outline, Bounds(), depth=0)
    return outline


def _scan_graph(view: memoryview, outline: Outline, bounds: Bounds, *, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"graphs are nested more than {MAX_DEPTH} deep")
    graph = _read(view, _GRAPH, "graph")
    tensors = [_scan_tensor(part) for part in graph.parts.get("initializer", [])]
    (outline.inner if depth else outline.initializers).extend(tensors)
    for tensor in tensors:
        bounds.note(tensor.name, tensor.dims, tensor.numbers)
    if depth == 0:
        outline.inputs = [_scan_value(part) for part in graph.parts.get("input", [])]
        outline.outputs = [_scan_value(part) for part in graph.parts.get("output", [])]
    for part in graph.parts.get("node", []):
        outline.nodes += 1
        if outline.nodes > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} nodes")
        _scan_node(part, outline, bounds, depth=depth)


def _scan_node(view: memoryview, outline: Outline, bounds: Bounds, *, depth: int) -> None:
    node = _read(view, _NODE, "node")
    operator = node.text("op_type")
    outline.operators.add((node.text("domain"), operator))
    inputs, outputs = ([_decoded(kind, part) for part in node.parts.get(kind, [])] for kind in ("input", "output"))
    outline.most_entries = max(outline.most_entries, bounds.entries(operator, inputs, outputs))
    if operator == "Scan":
        bounds = bounds.inside(inputs)
        outline.most_trips = max(outline.most_trips, bounds.trips)
    for part in node.parts.get("attribute", []):
        attribute = _read(part, _ATTRIBUTE, "attribute")
        tensor, graph = attribute.part("t"), attribute.part("g")
        if tensor is not None:
            held = _scan_tensor(tensor)
            outline.inner.append(held)
            if operator == "Constant" and outputs:
                bounds.note(outputs[0], held.dims, held.numbers)
        if graph is not None:
            _scan_graph(graph, outline, bounds, depth=depth + 1)


def _scan_tensor(view: memoryview) -> Tensor:
    tensor = _read(view, _TENSOR, "tensor")
    external = {}
    for part in tensor.parts.get("external_data", []):
        entry = _read(part, _ENTRY, "external data entry")
        external[entry.text("key")] = entry.text("value")
    if tensor.number("data_location", 0) == _EXTERNAL and not external:
        raise ValueError("a tensor says its data is elsewhere but not where")
    dims = _dims([_signed(size) for size in tensor.numbers.get("dims", [])])
    stored = ("raw_data", "float_data", "int32_data", "int64_data")
    return Tensor(
        name=tensor.text("name"),
        dtype=_dtype(tensor.number("data_type", 0)),
        dims=dims,
        size_bytes=sum(len(part) for name in stored for part in tensor.parts.get(name, [])),
        external=external,
        numbers=_few_numbers(tensor, dims),
    )


def _few_numbers(tensor: _Record, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """The values of a tensor that could be a shape."""
    if tensor.number("data_type", 0) != _INT64 or math.prod(dims) > MAX_RANK:
        return None
    raw = tensor.part("raw_data")
    if raw is not None:
        return tuple(int.from_bytes(raw[at : at + 8], "little", signed=True) for at in range(0, len(raw), 8))
    found: list[int] = []
    for part in tensor.parts.get("int64_data", []):
        at = 0
        while at < len(part):
            number, at = _varint(part, at)
            found.append(_signed(number))
    return tuple(found)


def _scan_value(view: memoryview) -> OutlineValue:
    value = _read(view, _VALUE, "value")
    kind = value.part("type")
    tensor = None if kind is None else _read(kind, _TYPE, "type").part("tensor_type")
    if tensor is None:
        raise ValueError(f"input or output {value.text('name')!r} is not a tensor")
    described = _read(tensor, _TENSOR_TYPE, "tensor type")
    shape = described.part("shape")
    dims = None
    if shape is not None:
        parts = [_read(part, _DIMENSION, "dimension") for part in _read(shape, _SHAPE, "shape").parts.get("dim", [])]
        known = [_signed(part.number("dim_value", -1 & _MASK)) for part in parts]
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


_MASK = (1 << 64) - 1


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _read(view: memoryview, layout: _Layout, what: str) -> _Record:
    """The known fields of one message; an unknown one, or a second where one is meant, is an error."""
    record = _Record({}, {})
    for number, wire, value in _fields(view):
        if number not in layout:
            raise ValueError(f"a {what} has the unknown field {number}")
        name, kind = layout[number]
        if kind == _ANY:
            continue
        _KEEP[kind](record, name, wire, value)
    return record


def _fields(view: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of each field."""
    at, end = 0, len(view)
    while at < end:
        key, at = _varint(view, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(view, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(view, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} is not used by ONNX")
        if size > end - at:
            raise ValueError("it is cut short")
        yield number, wire, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError("it is cut short")
        byte = view[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            if result > _MASK:
                break
            return result, at
    raise ValueError("it holds a number of more than 64 bits")


def _keep_number(record: _Record, name: str, wire: int, value: int | memoryview) -> None:
    if not isinstance(value, int) or name in record.numbers:
        raise ValueError(f"{name} is not exactly one number")
    record.numbers[name] = [value]


def _keep_numbers(record: _Record, name: str, wire: int, value: int | memoryview) -> None:
    found = record.numbers.setdefault(name, [])
    if isinstance(value, int):
        found.append(value)
    elif wire == _BYTES:
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(number)
    else:
        raise ValueError(f"{name} is not a list of numbers")
    if len(found) > MAX_RANK:
        raise ValueError(f"{name} has more than {MAX_RANK} numbers")


def _keep_text(record: _Record, name: str, wire: int, value: int | memoryview) -> None:
    if name in record.parts:
        raise ValueError(f"{name} stands there twice")
    _keep_texts(record, name, wire, value)


def _keep_texts(record: _Record, name: str, wire: int, value: int | memoryview) -> None:
    if wire != _BYTES or isinstance(value, int):
        raise ValueError(f"{name} has wire type {wire}")
    record.parts.setdefault(name, []).append(value)


def _check_name(record: _Record, name: str, wire: int, value: int | memoryview) -> None:
    """onnxruntime puts names into its messages, and cannot when they are not text."""
    if wire != _BYTES or isinstance(value, int):
        raise ValueError(f"{name} has wire type {wire}")
    _decoded(name, value)


_KEEP: dict[str, Callable[[_Record, str, int, int | memoryview], None]] = {
    _N: _keep_number,
    _NS: _keep_numbers,
    _T: _keep_text,
    _TS: _keep_texts,
    _NAMES: _check_name,
}
