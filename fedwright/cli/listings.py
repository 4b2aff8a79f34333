"""`fedwright methods | models | profiles | datasets`: what there is, one line each."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedwright.cli.arguments import add_print_json, command

if TYPE_CHECKING:
    from fedwright.protocol.support.plugins import Plugin

Rows = list[dict[str, str]]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add one command for each list."""
    for name, (rows, summary) in LISTS.items():
        parser = command(subparsers, name, f"{summary}, one line each", f"example:\n  fedwright {name} --json")
        add_print_json(parser, "a JSON list")
        parser.set_defaults(run=_printer(rows))


def methods() -> Rows:
    """Name and summary of every method; of those from other packages, where they lie."""
    from fedwright.server_runtime.methods import registry

    ours = [{"name": name, "summary": entry.summary} for name, entry in sorted(registry.METHODS.items())]
    return ours + _from_outside(registry.offered())


def models() -> Rows:
    """Name and summary of every model; of those from other packages, where they lie."""
    from fedwright.server_runtime import model_names

    ours = [{"name": name, "summary": summary} for name, summary in sorted(model_names.SUMMARIES.items())]
    return ours + _from_outside(model_names.offered())


def profiles() -> Rows:
    """Name and summary of every device profile and fleet."""
    from fedwright.device_runtime.emulate.profiles import OURS, load_fleet, load_profile, names, package_of

    devices = [{"name": name, "summary": load_profile(name).summary} for name in names("devices")]
    fleets = [{"name": name, "summary": "fleet: " + load_fleet(name).summary} for name in names("fleets")]
    packages = [package_of("devices", row["name"]) for row in devices]
    packages += [package_of("fleets", row["name"]) for row in fleets]
    return [
        row if package == OURS else {**row, "summary": f"{row['summary']} (package {package})", "package": package}
        for row, package in zip(devices + fleets, packages, strict=True)
    ]


def datasets() -> Rows:
    """Name and summary of every data set, and whether its files are here."""
    from fedwright.simulation.datasets import available, offered
    from fedwright.simulation.datasets.files import VARIABLE

    rows = []
    for info in available():
        absent = (
            "is downloaded when it is used" if info.downloadable else f"not here; put its file where {VARIABLE} says"
        )
        place = info.place or ""
        rows.append({"name": info.name, "summary": info.summary, "place": place, "state": place or absent})
    packages = _from_outside(offered())
    return rows + [{**row, "place": "", "state": "is read when it is used"} for row in packages]


def _from_outside(found: "list[Plugin]") -> Rows:
    """A line for each thing that another package offers, which is not imported for it."""
    return [{"name": plugin.name, "summary": plugin.summary, "package": plugin.package} for plugin in found]


LISTS: dict[str, tuple[Callable[[], Rows], str]] = {
    "methods": (methods, "the methods there are"),
    "models": (models, "the models there are"),
    "profiles": (profiles, "the device profiles there are"),
    "datasets": (datasets, "the data sets there are, and where"),
}


def _printer(rows: Callable[[], Rows]) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        found = rows()
        if args.json:
            print(json.dumps(found, indent=2))
            return 0
        width = max((len(row["name"]) for row in found), default=0)
        for row in found:
            state = f" [{row['state']}]" if "state" in row else ""
            print(f"{row['name']:<{width}}  {row['summary']}{state}")
        return 0

    return run
