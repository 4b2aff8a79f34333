"""`fedwright top`: the fleet of a run in a terminal, as it is now; reads the run's folder and touches nothing."""

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwright.cli.arguments import add_print_json, add_run_folder, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedwright.server_runtime.watch.run_watch import RunWatch

EXAMPLES = """examples:
  fedwright top                    the newest run in runs/
  fedwright top runs/run           also over SSH, also of a run that is over
  fedwright top runs/run --once    once, without waiting for changes

q leaves; arrows and page keys, or j and k, move through the devices."""
# Those who need somebody come first.
URGENT = ("silent", "refused", "rejected", "late", "turned away", "revoked", "away")
COLUMNS = ("device", "board", "state", "seen", "accuracy", "temp.", "free / RAM MB", "width", "updates", "failed")
# Those that are cut where a terminal is narrow.
GIVING = ("board", "state")
# Lines of a screen that are not devices.
AROUND = 6
MB = 1e6
KEYS = {"q": 0, "\x03": 0, "\x1b": 0, "j": 1, "\x1b[B": 1, "k": -1, "\x1b[A": -1, "\x1b[6~": 20, "\x1b[5~": -20}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `top`."""
    parser = command(subparsers, "top", "the fleet of a run in this terminal", EXAMPLES)
    add_run_folder(parser)
    parser.add_argument("--once", action="store_true", help="show it once")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="look so often (default: 1)")
    add_print_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the fleet until somebody has seen enough."""
    import json

    from rich.console import Console

    from fedwright.server_runtime.watch.run_watch import RunWatch

    watch = RunWatch(_folder(args.run_folder))
    watch.look()
    console = Console()
    if args.json:
        print(json.dumps({**watch.summary(), "fleet": watch.fleet()}, indent=2))
    elif args.once or not (console.is_terminal and sys.stdin.isatty()):
        console.print(picture(watch, shown=len(watch.history.devices)))
    else:
        _follow(watch, max(0.1, args.every))
    return 0


def _folder(given: Path | None) -> Path:
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.watch.history import runs_below

    if given is not None and list(runs_below(given)) == [given]:
        return given
    found = list(runs_below(given or Path("runs")))
    if not found:
        raise ConfigError(f"there is no run in {given or 'runs'}; name the folder of one, such as runs/NAME")
    return max(found, key=lambda folder: folder.stat().st_mtime_ns)


def _follow(watch: "RunWatch", every_s: float) -> None:
    from rich.live import Live

    first = 0
    with _single_keys(), Live(auto_refresh=False, screen=True) as live:
        while True:
            watch.look()
            room = max(1, live.console.height - AROUND)
            first = max(0, min(first, len(watch.history.devices) - room))
            live.update(picture(watch, first=first, shown=room), refresh=True)
            step = _key(every_s)
            if step == 0:
                return
            first += step or 0


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one and unseen; the terminal is as it was afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(timeout_s: float) -> int | None:
    """What a key that came in time asks for: 0 to leave, lines to move; None for nothing."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    if not ready:
        return None
    data = os.read(sys.stdin.fileno(), 16).decode(errors="ignore")
    return KEYS.get(data) if data else 0


def picture(watch: "RunWatch", *, first: int = 0, shown: int = 20) -> "RenderableType":
    """The run in two lines, then a line for each device."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    summary, fleet = watch.summary(), watch.fleet()
    planned = int(summary["about"].get("rounds") or 0)
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(max(1, planned), summary["rounds_done"], width=30)
    head.add_row(bar, Text(f"{summary['rounds_done']} of {planned} rounds"), Text(_now(summary)))
    fleet.sort(key=lambda row: (row["state"] not in URGENT, row["device"]))
    seen = fleet[first : first + shown]
    rows = [cells(row, time.time()) for row in seen]
    # A column that says nothing of anybody is left out, and a narrow terminal takes its room from the boards' names.
    told = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for place in told:
        column = COLUMNS[place]
        widest = None if column in GIVING else max(len(row[place]) for row in rows)
        table.add_column(column, no_wrap=True, justify="left" if column in COLUMNS[:3] else "right", min_width=widest)
    for row, texts in zip(seen, rows, strict=True):
        table.add_row(*(Text(texts[place]) for place in told), style="red" if row["state"] in URGENT else "")
    below = len(fleet) - first - shown
    more = [Text(f"and {below} more below", style="dim")] if below > 0 else []
    title = f"{summary['name']}: {summary['about'].get('method', '')}, {summary['state']}"
    return Group(Text(title, style="bold"), head, Text(""), table, *more)


def _now(summary: dict[str, Any]) -> str:
    """How the run fares: accuracy, and whom it waits for."""
    parts = [f"{summary['present']} of {summary['devices']} devices are here"]
    for figures in summary["figures"]:
        if "accuracy_mean" in figures:
            parts.append(f"accuracy {figures['accuracy_mean']:.1%}, worst {figures['accuracy_worst']:.1%}")
    stage = summary["stage"]
    if stage and summary["served"]:
        parts.append(f"round {stage['round']}: {stage['answered']} of {stage['devices']} answered")
    return "; ".join(parts)


def cells(row: dict[str, Any], now_s: float) -> list[str]:
    """A device in words; what is not known is empty."""
    state = row["state"]
    if row["of"]:
        state = (
            f"training {row['done']}/{row['of']}" if state == "training" else f"{state} {row['done'] / row['of']:.0%}"
        )
    if row["detail"] and row["state"] in URGENT:
        state = f"{state}: {row['detail'][:40]}"
    free, ram = row["free_bytes"], row["ram_bytes"]
    memory = f"{free / MB:.0f} / {ram / MB:.0f}" if free and ram else ""
    return [
        row["device"],
        str(row["profile"] or row["board"])[:20],
        state,
        _ago(now_s - row["seen_s"]) if row["seen_s"] else "",
        "" if row["accuracy"] is None else f"{row['accuracy']:.1%}",
        "" if row["temperature_c"] is None else f"{row['temperature_c']:.0f} C",
        memory,
        "" if row["width"] is None else f"{row['width']:.2f}",
        str(row["updates"]),
        str(row["failures"]),
    ]


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
