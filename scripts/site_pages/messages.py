"""The reference of messages, from the records that cross the link."""

import typing
from typing import Any

import msgspec

from fedwright.protocol import artifact, messages
from fedwright.protocol.data_summary import DataSummary

HEAD = """# Messages

Every record of the wire in its order, made from `protocol/messages.py` of this version; [the wire
protocol](../concepts/wire-protocol.md) says how
they are used. A record is a msgpack map by field name; a tagged one has the key `type` with its tag. A field with a
default may be absent.
"""
PARTS = [
    messages.BlobRef,
    messages.Board,
    DataSummary,
    messages.Recipe,
    messages.Returns,
    messages.Pool,
    messages.Stats,
    messages.Part,
]
MANIFEST = [artifact.TensorSpec, artifact.Slot, artifact.FileInfo, artifact.Manifest]


def messages_page() -> str:
    """A table for the envelope, for every message and for what messages are made of."""
    kinds = [*typing.get_args(messages.Message)]
    parts = [HEAD, "## The envelope\n", _record(messages.Envelope), "## Messages\n", *map(_record, kinds)]
    parts += ["## Parts of messages\n", *map(_record, PARTS)]
    parts += ["## The manifest of an artifact\n", *map(_record, MANIFEST)]
    return "\n".join(parts)


def _record(kind: type[Any]) -> str:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    tag = f" (type `{info.tag}`)" if info.tag else ""
    about = (kind.__doc__ or "").strip().replace("\n    ", "\n").replace("<", "&lt;")
    rows = [f"| `{field.encode_name}` | {_type(field.type)} | {_default(field)} |" for field in info.fields]
    table = ["| field | type | default |", "| --- | --- | --- |", *rows] if rows else ["No fields."]
    return "\n".join([f"### {kind.__name__}{tag}\n", about + "\n", *table]) + "\n"


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return f"`{value!r}`"


def _type(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _type(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        if len(kind.types) > 4:
            return "a message"
        return " or ".join(_type(each) for each in kind.types)
    if isinstance(kind, msgspec.inspect.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if isinstance(kind, msgspec.inspect.ListType):
        return f"list of {_type(kind.item_type)}{_bounds(kind, 'length')}"
    if isinstance(kind, msgspec.inspect.DictType):
        return f"map of {_type(kind.key_type)} to {_type(kind.value_type)}{_bounds(kind, 'length')}"
    if isinstance(kind, msgspec.inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in kind.values)
    name = type(kind).__name__.removesuffix("Type").lower().replace("memoryview", "bytes").replace("none", "nil")
    length = _bounds(kind, "length") if hasattr(kind, "max_length") else ""
    size = _bounds(kind, "") if hasattr(kind, "ge") else ""
    expression = getattr(kind, "pattern", None)
    pattern = f", `{expression}`" if expression else ""
    return f"{name}{length}{size}{pattern}"


def _bounds(kind: Any, what: str) -> str:
    names = (("min_length", "max_length"),) if what else (("ge", "le"), ("gt", "lt"))
    words = []
    for low, high in names:
        least, most = getattr(kind, low, None), getattr(kind, high, None)
        words += [f"{'≥' if low != 'gt' else '>'} {_number(least)}"] if least is not None else []
        words += [f"{'≤' if high != 'lt' else '<'} {_number(most)}"] if most is not None else []
    return f" ({what + ' ' if what else ''}{', '.join(words)})" if words else ""


def _number(value: float) -> str:
    powers = {2**53: "2^53", 2**62: "2^62", 2**31: "2^31"}
    return powers.get(int(value), f"{value:,}" if isinstance(value, int) else f"{value:g}")
