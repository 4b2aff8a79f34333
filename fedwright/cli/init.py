"""`fedwright init` prints a commented config, `fedwright validate` checks one."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwright.cli.arguments import command

if TYPE_CHECKING:
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


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `init` and `validate`."""
    example = "example:\n  fedwright init fedavg > run.toml"
    init = command(subparsers, "init", "print a commented config for a method, ready to run", example)
    init.add_argument("method", metavar="METHOD", help="a name from `fedwright methods`, python:module:class, or: edge")
    init.set_defaults(run=run_init)
    examples = "examples:\n  fedwright validate run.toml\n  fedwright validate edge.toml"
    about = "Check a config without running it; the exit code says whether it is good."
    validate = command(subparsers, "validate", "check a config without running it", examples, about=about)
    validate.add_argument("config", metavar="CONFIG", type=Path, help="a TOML file")
    validate.set_defaults(run=run_validate)


def run_init(args: argparse.Namespace) -> int:
    """Print the config of one method."""
    from fedwright.server_runtime.methods import registry

    if args.method == "edge":
        sys.stdout.write(starter_edge())
        return 0
    sys.stdout.write(starter_config(registry.find(args.method)))
    return 0


def run_validate(args: argparse.Namespace) -> int:
    """Check one config, of a run or of an edge."""
    from fedwright.protocol.address import mask
    from fedwright.server_runtime.config import config_from_text
    from fedwright.server_runtime.config_sections.reading import read_text
    from fedwright.server_runtime.edge.config import check_edge, is_edge, load_edge
    from fedwright.server_runtime.methods.registry import find
    from fedwright.simulation.check_config import check_config

    text = read_text(args.config)
    if is_edge(text):
        edge = load_edge(args.config)
        check_edge(edge)
        print(
            f"{args.config} is good: edge {edge.edge.name} of fleet {edge.host.fleet}, broker {mask(edge.host.broker)}"
        )
        return 0
    config = config_from_text(text, where=args.config.name)
    starter = config_from_text(starter_config(find(config.method.name)), where="init")
    for note in check_config(config, starter):
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{args.config} is good: {config.method.name} on {config.model.model}, {config.run.rounds} rounds, "
        f"at least {config.fleet.devices} devices, broker {mask(config.fleet.broker)}"
    )
    return 0


def starter_config(entry: "Entry") -> str:
    """A config with every setting, its default and what it means; those without a default stay commented out."""
    from fedwright.server_runtime.config import SECTIONS

    parts = [HEADER.format(title=f"{entry.name}: {entry.summary}")]
    for name, cls in SECTIONS.items():
        changed = {**START.get(name, {}), **entry.start.get(name, {})}
        if name == "model":
            changed["model"] = entry.model
        parts.append(_table(name, cls, changed=changed))
        if name == "model":
            own = entry.start.get("method")
            parts.append(_table("method", entry.params, first=[f'name = "{entry.name}"'], changed=own))
    return "\n".join(parts)


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
