"""Settings from plain data into frozen dataclasses; every mistake is one sentence that names the key."""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedwright.protocol.errors import ConfigError

T = TypeVar("T")

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
}


def hint(text: str) -> dict[str, str]:
    """What a field of settings means, as `fedwright init` prints it beside its default."""
    return {"help": text}


def from_dict(cls: type[T], data: Any, *, where: str) -> T:
    """Make `cls` from a table; `where` (file and section) opens every error message, also that of its own checks."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table of settings, not {_show(data)}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
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
    """`value` as `kind`, or an error that says what was expected."""
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return from_dict(kind, value, where=where)  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        return _convert_union(args, value, where=where)
    if origin is Literal:
        return _convert_literal(args, value, where=where)
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return _convert_sequence(kind, value, where=where)
    if origin is dict and isinstance(value, Mapping):
        return {str(key): _convert(args[1], item, where=f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Any or (isinstance(kind, type) and type(value) is kind):
        return value
    raise ConfigError(f"{where} is {_show(value)} but must be {describe(kind)}")


def _convert_union(options: tuple[Any, ...], value: Any, *, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    real = [option for option in options if option is not type(None)]
    if len(real) == 1:
        return _convert(real[0], value, where=where)
    for option in real:
        try:
            return _convert(option, value, where=where)
        except ConfigError:
            continue
    raise ConfigError(f"{where} is {_show(value)} but must be {' or '.join(describe(option) for option in real)}")


def _convert_literal(choices: tuple[Any, ...], value: Any, *, where: str) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    raise ConfigError(f"{where} is {_show(value)}; {suggest(value, choices)}")


def _convert_sequence(kind: Any, value: list[Any] | tuple[Any, ...], *, where: str) -> Any:
    args = get_args(kind)
    if get_origin(kind) is list or args[-1] is Ellipsis:
        items = [_convert(args[0], item, where=f"{where}[{index}]") for index, item in enumerate(value)]
        return items if get_origin(kind) is list else tuple(items)
    if len(value) != len(args):
        raise ConfigError(f"{where} has {len(value)} entries but must have {len(args)}")
    return tuple(
        _convert(arg, item, where=f"{where}[{index}]")
        for index, (arg, item) in enumerate(zip(args, value, strict=True))
    )


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"the list {list(value)!r}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
