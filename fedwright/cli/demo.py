"""`fedwright demo`: a whole fleet on this machine."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwright.cli.arguments import command, new_file

if TYPE_CHECKING:
    from rich.table import Table

    from fedwright.simulation.demo import DemoResult

EXAMPLE = """example:
  fedwright demo
  fedwright demo --devices 4 --rounds 5 --json result.json
  fedwright demo --fleet frail --devices 4    # devices that lose their power and come back
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `demo`."""
    about = (
        "Start a broker, the server and emulated devices on this machine, train a small CNN on "
        "handwritten digits over MQTT, and print what each device did."
    )
    summary = "a whole fleet on this machine: broker, server and emulated devices"
    parser = command(subparsers, "demo", summary, EXAMPLE, about=about)
    add = parser.add_argument
    add("--method", default="hasa", metavar="M", help="a name from `fedwright methods` (default: %(default)s)")
    add("--devices", type=int, default=8, metavar="N", help="how many devices to emulate (default: %(default)s)")
    add("--rounds", type=int, default=10, metavar="R", help="how many rounds to train (default: %(default)s)")
    add("--fleet", default="demo", metavar="F", help="of `fedwright profiles`, or a TOML file (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="S", help="of the data split and the training (default: %(default)s)")
    add("--json", type=new_file, metavar="FILE", help="write the result as JSON too")
    add("--keep", type=Path, metavar="FOLDER", help="keep logs, data and state of all sides in this new folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo and print its table."""
    from rich.console import Console

    from fedwright.cli.progress import Progress
    from fedwright.cli.signals import terminable
    from fedwright.cli.tables import device_table
    from fedwright.protocol.support.settings import check_range
    from fedwright.simulation.demo import DemoOptions, run_demo

    check_range("--devices", args.devices, low=1, high=24)
    check_range("--rounds", args.rounds, low=1, high=1000)
    check_range("--seed", args.seed, low=0, high=2**31)
    options = DemoOptions(args.method, args.devices, args.rounds, args.seed, args.keep, args.fleet)
    with terminable(), Progress(args.rounds, args.devices) as progress:
        result = run_demo(options, progress)
    found = as_json(result)
    title = f"{args.method}, {args.rounds} rounds, {args.devices} devices over {result.broker}"
    console = Console()
    for table in (device_table(title, found["devices"]), limits_table(result)):
        console.print(table)
        console.print()
    console.print(f"global model: {result.model}", highlight=False, soft_wrap=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def limits_table(result: "DemoResult") -> "Table":
    """Which limits held each device, and how well."""
    first = next(iter(result.devices.values())).exit.enforced
    from fedwright.cli.tables import MB, plain_table

    table = plain_table(
        f"limits: memory by RLIMIT_DATA, CPU by {first.cpu_mechanism}, "
        f"{first.slowdown:.1f} times slower than the profiles to fit on this machine",
        ("device", "profile"),
        ("memory\nlimit MB", "share of a core\nallowed", "highest\nover 1 s", "power\nlost", "exit\ncode"),
    )
    for name, device in result.devices.items():
        held = device.exit.enforced
        table.add_row(
            name,
            device.profile,
            f"{held.memory_bytes / MB:.0f}",
            f"{held.cpu_share:.2f}",
            f"{held.measured_share:.2f}",
            str(held.plug_pulls),
            str(device.exit.exit_code),
        )
    return table


def as_json(result: "DemoResult") -> dict[str, Any]:
    """The result for programs; scripts rely on these keys."""
    from fedwright.cli.tables import record_row

    return {
        "devices": [
            {
                **record_row(device.record),
                "profile": device.profile,
                "cpu_s": device.exit.cpu_s,
                "peak_rss_bytes": max(device.record.peak_rss_bytes, device.exit.peak_rss_bytes),
                "exit_code": device.exit.exit_code,
                "limits": asdict(device.exit.enforced),
            }
            for device in result.devices.values()
        ],
        "rounds": result.options.rounds,
        "method": result.options.method,
        "model_path": str(result.model),
        "metrics": result.metrics,
    }
