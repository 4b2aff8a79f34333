"""The reference of configs, from the dataclasses that they are read into."""

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from fedwright.server_runtime import config
from fedwright.server_runtime.edge import config as edge

RUN_HEAD = """# Config of a run

A TOML file; `fedwright init METHOD` writes one with every setting, `fedwright validate run.toml` checks it. An
unknown key is an error that names the valid ones.
The section `[method]` has the `name` of a method and [its own settings](method-settings.md).
"""
EDGE_HEAD = """# Config of an edge

`fedwright init edge` writes one; `fedwright server edge edge.toml` serves it. See [edge servers](../how-to/edges.md).
"""


def config_page() -> str:
    """Every section of a run's config."""
    return _page(RUN_HEAD, config.SECTIONS)


def edge_page() -> str:
    """Every section of an edge's config."""
    return _page(EDGE_HEAD, edge.SECTIONS)


def _page(head: str, sections: Mapping[str, type[Any]]) -> str:
    return "\n".join([head, *(part for name, cls in sections.items() for part in settings_tables(name, cls))])


def settings_tables(name: str, cls: type[Any]) -> Iterator[str]:
    """The section `[name]` and those inside it, each a heading, its line and a table."""
    rows, inner = [], []
    types = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        default = default_of(field)
        if dataclasses.is_dataclass(default) and not isinstance(default, type):
            inner.append((f"{name}.{field.name}", type(default)))
            continue
        rows.append(f"| `{field.name}` | {_type(types[field.name])} | {_shown(default)} | {_help(field)} |")
    yield f"## [{name}]\n\n{first_line(cls)}\n"
    if rows:
        yield "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"
    for inner_name, inner_cls in inner:
        yield from settings_tables(inner_name, inner_cls)


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """What a setting is when it is not given; MISSING where it must be."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def first_line(cls: type[Any]) -> str:
    """The first line of a docstring."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def _shown(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "must be given"
    return "absent" if value is None else f"`{json.dumps(value)}`"


def _type(kind: Any) -> str:
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f'`"{choice}"`' for choice in typing.get_args(kind))
    arguments = [each for each in typing.get_args(kind) if each not in (type(None), ...)]
    if typing.get_origin(kind) is tuple:
        return "list of " + " or ".join(dict.fromkeys(_type(each) for each in arguments))
    if arguments:
        return " or ".join(dict.fromkeys(_type(each) for each in arguments))
    name = getattr(kind, "__name__", str(kind))
    return names.get(name, name)


def _help(field: "dataclasses.Field[Any]") -> str:
    return str(field.metadata.get("help", "")).replace("|", "\\|")
