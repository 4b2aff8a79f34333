"""`fedwright server check | audit`: looks through what a run keeps on disk."""

import argparse
import json
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedwright.cli.arguments import add_print_json, add_run_folder, command, example


def add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command that checks a run's folder."""
    summary = "look through a run's folder for damage; exit code 1 when there is some"
    check = command(commands, "check", summary, example("server check runs/run"))
    add_run_folder(check)
    add_print_json(check)
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.run_folder.verify import verify_run
    from fedwright.server_runtime.run_reader import latest_run

    folder = args.run_folder or latest_run()
    verdict = verify_run(folder)
    if args.json:
        print(json.dumps({"folder": str(folder), "whole": not verdict.problems, **asdict(verdict)}, indent=2))
    elif verdict.problems:
        print(f"{folder}: damaged in these places ({len(verdict.problems)})")
        for problem in verdict.problems:
            print(f"  {problem.line()}")
    else:
        print(f"{folder}: whole after round {verdict.rounds}, its blobs as well ({verdict.blobs})")
    return 1 if verdict.problems else 0


def add_audit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command that shows a run's audit log."""
    audit = command(
        commands,
        "audit",
        "show who joined a run, what was sent, accepted and refused, and who ordered it",
        "examples:\n  fedwright server audit runs/run\n  fedwright server audit runs/run --verify",
    )
    add_run_folder(audit)
    audit.add_argument("--verify", action="store_true", help="follow its chain; exit code 1 where that is broken")
    add_print_json(audit)
    audit.set_defaults(run=_audit)


def _audit(args: argparse.Namespace) -> int:
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.rounds.audit import AUDIT, check_audit, read_audit
    from fedwright.server_runtime.run_reader import latest_run

    folder = args.run_folder or latest_run()
    if not (folder / AUDIT).is_file():
        raise ConfigError(f"{folder} has no {AUDIT}; give the folder of a run that this release has begun or resumed")
    if not args.verify:
        for entry in read_audit(folder):
            print(json.dumps(entry) if args.json else _line(entry))
        return 0
    found = check_audit(folder)
    found = replace(found, problem=found.missing(_rounds_closed(folder)))
    if args.json:
        print(json.dumps({"folder": str(folder), "whole": not found.problem, **asdict(found)}, indent=2))
    elif found.problem:
        print(f"{folder / AUDIT}: {found.problem}; it was changed or damaged there, put a copy of it back")
    else:
        torn = "; a last line that is not whole is cut when the run goes on" if found.torn else ""
        print(f"{folder / AUDIT}: {found.lines} lines hold together{torn}; the last one has the hash {found.head}")
    return 1 if found.problem else 0


def _rounds_closed(folder: Path) -> int:
    """The round that the run's store has closed last; 0 where nobody can tell."""
    from fedwright.protocol.errors import FedwrightError
    from fedwright.server_runtime.run_reader import open_run

    try:
        return open_run(folder).rounds_done
    except FedwrightError:
        # Whether the store is whole is what `server check` says; a log can be looked at without it.
        return 0


def _line(entry: dict[str, Any]) -> str:
    """An entry for a person."""
    when = datetime.fromtimestamp(float(entry.get("time", 0)), timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    rest = {name: value for name, value in entry.items() if name not in ("time", "what", "before")}
    return f"{when} {entry.get('what')}: " + ", ".join(f"{name} {_told(value)}" for name, value in rest.items())


def _told(value: Any) -> str:
    """A value without the marks of a program."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_told(own)}" for name, own in value.items()) + ")"
    if isinstance(value, list):
        return " ".join(map(_told, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value in ("", None) else str(value)
