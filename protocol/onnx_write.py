"""Writes protobuf records of an ONNX file, so that a device can put nodes into a graph without the onnx package."""

import struct
from collections.abc import Sequence

_VARINT, _BYTES = 0, 2
# Of attributes and of elements.
_INT, _INTS = 2, 7
_FLOAT, _INT64 = 1, 7
_IR_VERSION = 8


def varint(number: int) -> bytes:
    """A number as protobuf writes it; negative ones as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number_field(field: int, number: int) -> bytes:
    """A field that is a number."""
    return varint(field << 3 | _VARINT) + varint(number)


def bytes_field(field: int, value: bytes | str | memoryview) -> bytes:
    """A field that is a text or a message."""
    data = value.encode() if isinstance(value, str) else bytes(value)
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def attribute(name: str, value: int | Sequence[int]) -> bytes:
    """An attribute of a node: a whole number or a list of them."""
    if isinstance(value, int):
        return bytes_field(1, name) + number_field(3, value) + number_field(20, _INT)
    return bytes_field(1, name) + b"".join(number_field(8, item) for item in value) + number_field(20, _INTS)


def node(
    operator: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    domain: str = "",
    name: str = "",
    **attributes: int | Sequence[int],
) -> bytes:
    """One operator call."""
    parts = [bytes_field(1, item) for item in inputs] + [bytes_field(2, item) for item in outputs]
    parts += [bytes_field(3, name), bytes_field(4, operator)]
    parts += [bytes_field(5, attribute(key, value)) for key, value in attributes.items()]
    return b"".join([*parts, bytes_field(7, domain)]) if domain else b"".join(parts)


def whole_numbers(name: str, values: Sequence[int]) -> bytes:
    """An int64 vector that a graph holds."""
    raw = struct.pack(f"<{len(values)}q", *values)
    return number_field(1, len(values)) + number_field(2, _INT64) + bytes_field(8, name) + bytes_field(9, raw)


def operator_set(domain: str, version: int) -> bytes:
    """An import of operators."""
    return bytes_field(1, domain) + number_field(2, version)


def field_again(field: int, wire: int, value: int | memoryview) -> bytes:
    """A field as it was read."""
    if isinstance(value, int):
        return number_field(field, value)
    return bytes_field(field, value) if wire == _BYTES else varint(field << 3 | wire) + bytes(value)


def value_info(name: str, dims: Sequence[int]) -> bytes:
    """An input or output of numbers; -1 is a free size."""
    shape = b"".join(bytes_field(1, b"" if size < 0 else number_field(1, size)) for size in dims)
    tensor = number_field(1, _FLOAT) + bytes_field(2, shape)
    return bytes_field(1, name) + bytes_field(2, bytes_field(1, tensor))


def model(
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    *,
    constants: Sequence[bytes] = (),
    operators: Sequence[tuple[str, int]],
) -> bytes:
    """A whole model."""
    parts = [bytes_field(1, item) for item in nodes] + [bytes_field(2, "graph")]
    parts += [bytes_field(5, item) for item in constants]
    parts += [bytes_field(11, item) for item in inputs] + [bytes_field(12, item) for item in outputs]
    imports = [bytes_field(8, operator_set(*pair)) for pair in operators]
    return b"".join([number_field(1, _IR_VERSION), bytes_field(7, b"".join(parts)), *imports])
