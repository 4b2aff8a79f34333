"""Settings from plain data into frozen dataclasses; every mistake is one sentence that names the key."""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from fedwright.protocol.errors import ConfigError

T = TypeVar("T")

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
}


def hint(text: str, *, was: str | None = None) -> dict[str, str]:
    """What a field of settings means, as `fedwright init` prints it; was: its key in configs of earlier releases."""
    return {"help": text} if was is None else {"help": text, "was": was}


def from_dict(cls: type[T], data: Any, *, where: str) -> T:
    """Make `cls` from a table; `where` (file and section) opens every error message, also that of its own checks."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table of settings, not {_show(data)}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    renamed = {field.metadata["was"]: name for name, field in fields.items() if "was" in field.metadata}
    data = {key if renamed.get(key, key) in data else renamed[key]: value for key, value in data.items()}
    for key in data:
        if key not in fields:
            raise unknown(key, fields, where=where)
    missing = [name for name, field in fields.items() if name not in data and _is_required(field)]
    if missing:
        raise ConfigError(f"{where} lacks the key {missing[0]!r}; add it ({describe(hints[missing[0]])})")
    values = {key: _convert(hints[key], value, where=f"{where} {key}") for key, value in data.items()}
    try:
        return cls(**values)
    except (ConfigError, ValueError) as err:
        raise ConfigError(f"{where} {err}") from err


def unknown(key: object, valid: Iterable[str], *, where: str) -> ConfigError:
    """The error for a key that is not among the valid ones, with the nearest of them."""
    return ConfigError(f"{where} has the unknown key {key!r}; {suggest(key, valid)}")


def suggest(value: object, valid: Iterable[object]) -> str:
    """The end of a sentence about a wrong name: the nearest valid one, and all of them."""
    names = sorted(str(name) for name in valid)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}valid are {', '.join(names)}" if names else "it takes no settings"


def check_range(
    key: str, value: float, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> None:
    """Raise ConfigError unless low <= value <= high and value > above."""
    too_low = (low is not None and value < low) or (above is not None and value <= above)
    too_high = high is not None and value > high
    if too_low or too_high or math.isnan(value):
        raise ConfigError(f"{key} is {value!r} but must be {' and '.join(_bounds(low, high, above))}")


def _bounds(low: float | None, high: float | None, above: float | None) -> list[str]:
    texts = [(above, "above"), (low, "at least"), (high, "at most")]
    return [f"{text} {bound:g}" for bound, text in texts if bound is not None]


def describe(kind: Any) -> str:
    """What a value of this type looks like, for a person."""
    if kind in _NAMES:
        return _NAMES[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args if arg is not type(None))
    if origin in (tuple, list):
        return "a list of " + _plural(args[0])
    return "a table"


def _plural(kind: Any) -> str:
    plurals = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}
    return plurals.get(kind, "lists" if get_origin(kind) in (tuple, list) else "tables")


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(kind: Any, value: Any, *, where: str) -> Any:
    """`value` as `kind` by msgspec; entries are tried one by one before, so that a mistake is told by its place."""
    options = [option for option in get_args(kind) if option is not type(None)]
    if get_origin(kind) in (Union, types.UnionType) and len(options) == 1 and value is not None:
        kind = options[0]
    if dataclasses.is_dataclass(kind):
        return from_dict(kind, value, where=where)  # type: ignore[arg-type]
    for entry_kind, entry, place in _entries(kind, value):
        _convert(entry_kind, entry, where=f"{where}{place}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as err:
        raise ConfigError(f"{where} {_mistake(kind, value)}") from err


def _entries(kind: Any, value: Any) -> list[tuple[Any, Any, str]]:
    """What stands inside a list or a table: the kind that each entry must have, the entry, and its place."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (tuple, list) and isinstance(value, list | tuple):
        kinds = args[:1] * len(value) if origin is list or args[-1] is Ellipsis else args
        return [(kind, entry, f"[{index}]") for index, (kind, entry) in enumerate(zip(kinds, value, strict=False))]
    if origin is dict and isinstance(value, Mapping):
        return [(args[1], entry, f".{key}") for key, entry in value.items()]
    return []


def _mistake(kind: Any, value: Any) -> str:
    """The end of a sentence about a value that is not what it must be."""
    if get_origin(kind) is Literal:
        return f"is {_show(value)}; {suggest(value, get_args(kind))}"
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return f"has {len(value)} entries but must have {len(get_args(kind))}"
    return f"is {_show(value)} but must be {describe(kind)}"


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"the list {list(value)!r}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
