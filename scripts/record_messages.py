"""Writes one example of every message as the installed fedwright encodes it, for tests/protocol/recorded/.

A release is recorded from its own source tree, which stands before all others on the path:

    PYTHONPATH=OLD_TREE python scripts/record_messages.py tests/protocol/recorded/NAME.json
"""

import json
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from fedwright.protocol import codec
from fedwright.protocol.messages import VERSION, Message

HASH = "ab" * 32


def example(kind: Any, limits: msgspec.Meta | None = None) -> Any:
    """A value of an annotated type that is none of its defaults, as far as its limits allow."""
    limits = limits or msgspec.Meta()
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return example(args[0], args[1])
    if origin is Literal:
        return args[-1]
    if origin in (types.UnionType, Union):
        return example(next(part for part in args if part is not type(None)))
    if origin is list:
        return [example(args[0])]
    if origin is dict:
        return {example(args[0]): example(args[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return kind(**{name: example(hints[name]) for name in kind.__struct_fields__})
    return _plain(kind, limits)


def _plain(kind: type, limits: msgspec.Meta) -> Any:
    if kind is bool:
        return True
    if kind is int:
        return int(limits.ge or 0) + 1
    if kind is float:
        return float(limits.gt or limits.ge or 0) + 0.5
    if kind is str:
        return HASH if "{64}" in (limits.pattern or "") else "id-1"
    return kind(b"\x01" * (limits.min_length or 1))


def main() -> None:
    """Record every kind of message."""
    messages = {}
    for kind in get_args(Message):
        payload = codec.encode(example(kind), sender="pi-1", boot="boot-1", message_id="message-1")
        messages[kind.__struct_config__.tag] = payload.hex()
    Path(sys.argv[1]).write_text(json.dumps({"version": VERSION, "messages": messages}, indent=1) + "\n")


if __name__ == "__main__":
    main()
