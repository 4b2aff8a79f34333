"""Reads protobuf records of an ONNX file: what is unknown, or stands twice where once is meant, is a ValueError."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

MAX_NAME_BYTES = 1024
MAX_NUMBERS = 4096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# What a field may hold: one number, numbers (packed or not), one text or message, several, names that only have to
# be names, or what is not looked at.
NUMBER, NUMBERS, TEXT, TEXTS, NAMES, ANY = "number", "numbers", "text", "texts", "names", "anything"

# Field numbers of onnx.proto. What is missing here is refused: training_info, functions, sparse tensors, sequences.
Layout = dict[int, tuple[str, str]]
MODEL: Layout = {
    1: ("ir_version", NUMBER),
    2: ("producer_name", ANY),
    3: ("producer_version", ANY),
    4: ("domain", ANY),
    5: ("model_version", ANY),
    6: ("doc_string", ANY),
    7: ("graph", TEXT),
    8: ("opset_import", TEXTS),
    14: ("metadata_props", ANY),
}
OPSET: Layout = {1: ("domain", TEXT), 2: ("version", NUMBER)}
GRAPH: Layout = {
    1: ("node", TEXTS),
    2: ("name", NAMES),
    5: ("initializer", TEXTS),
    10: ("doc_string", ANY),
    11: ("input", TEXTS),
    12: ("output", TEXTS),
    13: ("value_info", ANY),
    16: ("metadata_props", ANY),
}
NODE: Layout = {
    1: ("input", TEXTS),
    2: ("output", TEXTS),
    3: ("name", NAMES),
    4: ("op_type", TEXT),
    5: ("attribute", TEXTS),
    6: ("doc_string", ANY),
    7: ("domain", TEXT),
    9: ("metadata_props", ANY),
}
ATTRIBUTE: Layout = {
    1: ("name", TEXT),
    2: ("f", ANY),
    3: ("i", NUMBER),
    4: ("s", TEXT),
    5: ("t", TEXT),
    6: ("g", TEXT),
    7: ("floats", ANY),
    8: ("ints", NUMBERS),
    9: ("strings", ANY),
    13: ("doc_string", ANY),
    20: ("type", NUMBER),
}
TENSOR: Layout = {
    1: ("dims", NUMBERS),
    2: ("data_type", NUMBER),
    4: ("float_data", TEXTS),
    5: ("int32_data", TEXTS),
    7: ("int64_data", TEXTS),
    8: ("name", TEXT),
    9: ("raw_data", TEXT),
    12: ("doc_string", ANY),
    13: ("external_data", TEXTS),
    14: ("data_location", NUMBER),
}
ENTRY: Layout = {1: ("key", TEXT), 2: ("value", TEXT)}
VALUE: Layout = {1: ("name", TEXT), 2: ("type", TEXT), 3: ("doc_string", ANY), 4: ("metadata_props", ANY)}
TYPE: Layout = {1: ("tensor_type", TEXT), 6: ("denotation", ANY)}
TENSOR_TYPE: Layout = {1: ("elem_type", NUMBER), 2: ("shape", TEXT)}
SHAPE: Layout = {1: ("dim", TEXTS)}
DIMENSION: Layout = {1: ("dim_value", NUMBER), 2: ("dim_param", ANY), 3: ("denotation", ANY)}


class Record(NamedTuple):
    """One message: the numbers and the byte ranges of its known fields."""

    numbers: dict[str, list[int]]
    parts: dict[str, list[memoryview]]

    def number(self, name: str, default: int) -> int:
        """The number of a field."""
        return self.numbers.get(name, [default])[0]

    def part(self, name: str) -> memoryview | None:
        """The bytes of a field, or None."""
        return self.parts.get(name, [None])[0]

    def text(self, name: str) -> str:
        """The text of a field, empty when it is not there."""
        found = self.part(name)
        if found is None:
            return ""
        return decoded(name, found)


def decoded(name: str, part: memoryview) -> str:
    """A name as text; ValueError for a long one."""
    if len(part) > MAX_NAME_BYTES:
        raise ValueError(f"a {name} of {len(part)} bytes")
    return str(part, "utf-8")


MASK = (1 << 64) - 1


def signed(number: int) -> int:
    """A number of 64 bits that may be negative."""
    return number - (1 << 64) if number >= 1 << 63 else number


def read(view: memoryview, layout: Layout, what: str) -> Record:
    """The known fields of one message; an unknown one, or a second where one is meant, is an error."""
    record = Record({}, {})
    for number, wire, value in fields(view):
        if number not in layout:
            raise ValueError(f"a {what} has the unknown field {number}")
        name, kind = layout[number]
        if kind == ANY:
            continue
        _KEEP[kind](record, name, wire, value)
    return record


def fields(view: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of each field."""
    at, end = 0, len(view)
    while at < end:
        key, at = varint(view, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = varint(view, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = varint(view, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} is not used by ONNX")
        if size > end - at:
            raise ValueError("it is cut short")
        yield number, wire, view[at : at + size]
        at += size


def varints(view: memoryview) -> list[int]:
    """All numbers of a packed field."""
    found, at = [], 0
    while at < len(view):
        number, at = varint(view, at)
        found.append(number)
    return found


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """One number, and where the next one begins."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError("it is cut short")
        byte = view[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            if result > MASK:
                break
            return result, at
    raise ValueError("it holds a number of more than 64 bits")


def _keep_number(record: Record, name: str, wire: int, value: int | memoryview) -> None:
    if not isinstance(value, int) or name in record.numbers:
        raise ValueError(f"{name} is not exactly one number")
    record.numbers[name] = [value]


def _keep_numbers(record: Record, name: str, wire: int, value: int | memoryview) -> None:
    found = record.numbers.setdefault(name, [])
    if isinstance(value, int):
        found.append(value)
    elif wire == _BYTES:
        found += varints(value)
    else:
        raise ValueError(f"{name} is not a list of numbers")
    if len(found) > MAX_NUMBERS:
        raise ValueError(f"{name} has more than {MAX_NUMBERS} numbers")


def _keep_text(record: Record, name: str, wire: int, value: int | memoryview) -> None:
    if name in record.parts:
        raise ValueError(f"{name} stands there twice")
    _keep_texts(record, name, wire, value)


def _keep_texts(record: Record, name: str, wire: int, value: int | memoryview) -> None:
    if wire != _BYTES or isinstance(value, int):
        raise ValueError(f"{name} has wire type {wire}")
    record.parts.setdefault(name, []).append(value)


def _check_name(record: Record, name: str, wire: int, value: int | memoryview) -> None:
    """onnxruntime puts names into its messages, and cannot when they are not text."""
    if wire != _BYTES or isinstance(value, int):
        raise ValueError(f"{name} has wire type {wire}")
    decoded(name, value)


_KEEP: dict[str, Callable[[Record, str, int, int | memoryview], None]] = {
    NUMBER: _keep_number,
    NUMBERS: _keep_numbers,
    TEXT: _keep_text,
    TEXTS: _keep_texts,
    NAMES: _check_name,
}
