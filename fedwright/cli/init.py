"""`fedwright init` prints a commented config, `fedwright validate` checks one."""

import argparse
import sys
from pathlib import Path

from fedwright.cli.arguments import command


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
    from fedwright.api.starter import starter_config, starter_edge
    from fedwright.server_runtime.methods import registry

    if args.method == "edge":
        sys.stdout.write(starter_edge())
        return 0
    sys.stdout.write(starter_config(registry.find(args.method)))
    return 0


def run_validate(args: argparse.Namespace) -> int:
    """Check one config, of a run or of an edge."""
    from fedwright.api.starter import starter_config
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
