"""`fedwright doctor`: what a host lacks that is to run servers and simulations."""

import argparse
from pathlib import Path

from fedwright.cli.arguments import add_print_json, command, example


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `doctor`."""
    about = "Look at what a host needs to serve, simulate and measure; for a board there is `fedwright device doctor`."
    summary = "say what this host lacks, and what to do about it"
    doctor = command(subparsers, "doctor", summary, example("doctor --json"), about=about)
    doctor.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept")
    add_print_json(doctor, "a JSON list")
    doctor.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from fedwright.api.host import diagnose_host
    from fedwright.cli.device import print_findings

    return print_findings(diagnose_host(args.runs), as_json=args.json)
