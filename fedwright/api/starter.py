"""Configs to start from: every setting of a method with its default and what it means."""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedwright.protocol.errors import ConfigError

if TYPE_CHECKING:
    from fedwright.server_runtime.config import RunConfig
    from fedwright.server_runtime.methods.registry import Entry

# What every starter config has instead of the defaults: enough steps for a few thousand examples to teach something.
START: dict[str, dict[str, Any]] = {
    "run": {"rounds": 8},
    "train": {"epochs": 2, "batch": 16, "optimizer": {"momentum": 0.9}},
    "simulate": {"devices": 10},
}
HEADER = """# {title}
#
# Try it here:      fedwright simulate run.toml
# On the host:      fedwright server run run.toml
# On each device:   the line that the host prints, or fedwright device run --broker mqtt://HOST:1883 --data npz:data.npz
# Check this file:  fedwright validate run.toml
"""

EDGE_HEADER = """# An edge server between the host and the devices of a site
#
# On the edge:      fedwright server edge edge.toml
# On its devices:   fedwright device run --edge edge-1 --edge edge-2 --broker mqtt://BROKER:1883 --data npz:data.npz
#
# As it stands the edge sends up one mean for each size of model: clusters and the exchange are off until cluster.most
# or cluster.exact, and exchange.form, say otherwise. The exchange also needs update.class_means in the run's config.
"""


def starter_config(entry: "Entry", changes: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """A config with every setting, its default and what it means; those without a default stay commented out.

    changes: by section, what is set otherwise than a starter config has it.
    """
    from fedwright.server_runtime.config import SECTIONS

    wanted = changes or {}
    parts = [HEADER.format(title=f"{entry.name}: {entry.summary}")]
    for name, cls in SECTIONS.items():
        own = {"model": entry.model} if name == "model" else {}
        changed = {**START.get(name, {}), **entry.start.get(name, {}), **own, **wanted.get(name, {})}
        parts.append(_table(name, cls, changed=changed))
        if name == "model":
            of_method = {**entry.start.get("method", {}), **wanted.get("method", {})}
            parts.append(_table("method", entry.params, first=[f'name = "{entry.name}"'], changed=of_method))
    return "\n".join(parts)


def config_with(settings: Mapping[str, Mapping[str, Any]], *, where: str) -> "tuple[RunConfig, str]":
    """The starter config of the method that is named, with these settings by section; and its text."""
    from fedwright.server_runtime.config import config_from_dict, config_from_text
    from fedwright.server_runtime.config_sections.reading import parse_toml
    from fedwright.server_runtime.methods import registry

    method = settings.get("method", {})
    if not isinstance(method.get("name"), str):
        raise ConfigError(f"{where} names no method; choose one of {', '.join(sorted(registry.METHODS))}")
    text = starter_config(registry.find(method["name"]), settings)
    written = parse_toml(text, where=where)
    # The text has known settings only, so mistakes show here.
    both = {name: {**written.get(name, {}), **settings.get(name, {})} for name in {**written, **settings}}
    config_from_dict(both, where=where)
    return config_from_text(text, where=where), text


def starter_edge() -> str:
    """A config of an edge server with every setting, its default and what it means."""
    from fedwright.server_runtime.edge.config import SECTIONS

    tables = [_table(name, cls, changed={"name": "edge-1"} if name == "edge" else {}) for name, cls in SECTIONS.items()]
    return "\n".join([EDGE_HEADER, *tables])


def _table(
    name: str, cls: type[Any], *, first: list[str] | None = None, changed: Mapping[str, Any] | None = None
) -> str:
    """One section and the sections inside it; changed: values other than the defaults, by name."""
    lines, inner = [f"[{name}]", *(first or [])], []
    for field in dataclasses.fields(cls):
        value, other = _default(field), (changed or {}).get(field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner.append(_table(f"{name}.{field.name}", type(value), changed=dataclasses.asdict(value) | (other or {})))
            continue
        value = value if other is None else other
        text = f"{field.name} = {_toml(value)}" if value is not None else f"# {field.name} ="
        help_text = field.metadata.get("help", "")
        lines.append(f"{text:<24}  # {help_text}" if help_text else text)
    return "\n".join(["\n".join(lines) + "\n", *inner])


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _toml(value: Any) -> str:
    """A scalar or a flat list as TOML, which agrees with JSON on both."""
    return json.dumps(value)
