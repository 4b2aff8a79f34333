"""`fedwright server check`: looks through what a run keeps on disk."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from fedwright.cli.arguments import command


def add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command that checks a run's folder."""
    check = command(
        commands,
        "check",
        "look through a run's folder for damage; exit code 1 when there is some",
        "example:\n  fedwright server check runs/run",
    )
    check.add_argument("run_folder", metavar="RUN", type=Path, nargs="?", help="default: the newest in runs/")
    check.add_argument("--json", action="store_true", help="print JSON instead")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.run_reader import latest_run
    from fedwright.server_runtime.verify_run import verify_run

    folder = args.run_folder or latest_run()
    verdict = verify_run(folder)
    if args.json:
        print(json.dumps({"folder": str(folder), "whole": not verdict.problems, **asdict(verdict)}, indent=2))
    elif verdict.problems:
        print(f"{folder}: {len(verdict.problems)} problems")
        for problem in verdict.problems:
            print(f"  {problem.line()}")
    else:
        print(f"{folder}: whole after {verdict.rounds} rounds; {verdict.blobs} blobs are what they should be")
    return 1 if verdict.problems else 0
