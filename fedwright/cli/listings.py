"""`fedwright methods | models | profiles | datasets`: what there is, one line each."""

import argparse
import json
from collections.abc import Callable

Rows = list[dict[str, str]]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add one command for each list."""
    for name, (rows, summary) in LISTS.items():
        parser = subparsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ", one line each.",
            epilog=f"example:\n  fedwright {name} --json",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--json", action="store_true", help="print a JSON list instead")
        parser.set_defaults(run=_printer(rows))


def methods() -> Rows:
    """Name and summary of every method."""
    from fedwright.server_runtime.methods import registry

    return [{"name": name, "summary": entry.summary} for name, entry in sorted(registry.METHODS.items())]


def models() -> Rows:
    """Name and summary of every model."""
    from fedwright.server_runtime.zoo import MODELS

    return [{"name": name, "summary": entry.summary} for name, entry in sorted(MODELS.items())]


def profiles() -> Rows:
    """Name and summary of every device profile and fleet."""
    from fedwright.device_runtime.emulate.profiles import load_fleet, load_profile, names

    devices = [{"name": name, "summary": load_profile(name).summary} for name in names("devices")]
    fleets = [{"name": name, "summary": "fleet: " + load_fleet(name).summary} for name in names("fleets")]
    return devices + fleets


def datasets() -> Rows:
    """Name and summary of every data set, and whether its files are here."""
    from fedwright.simulation.datasets import available
    from fedwright.simulation.datasets.files import VARIABLE

    rows = []
    for info in available():
        absent = (
            "is downloaded when it is used" if info.downloadable else f"not here; put its file where {VARIABLE} says"
        )
        place = info.place or ""
        rows.append({"name": info.name, "summary": info.summary, "place": place, "state": place or absent})
    return rows


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
