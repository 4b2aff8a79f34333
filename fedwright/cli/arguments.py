"""What the parsers of several commands share."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Shows its help where a command is missing, and the nearest name where one is wrong."""

    def error(self, message: str) -> NoReturn:
        """Say what was not understood and end with the code 2."""
        if message == "the following arguments are required: COMMAND":
            self.print_help(sys.stderr)
            self.exit(2)
        wrong = re.search(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<names>.*)\)", message)
        if wrong is not None:
            from fedwright.protocol.support.settings import suggest

            names = re.findall(r"[\w.-]+", wrong["names"])
            message = f"{message[: wrong.start()]}there is no {wrong['word']!r}; {suggest(wrong['word'], names)}"
        super().error(message)


def command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    epilog: str,
    *,
    about: str = "",
) -> argparse.ArgumentParser:
    """A parser for one command; its help begins with `about`, else the summary, and ends with the epilog as it is."""
    return commands.add_parser(
        name,
        help=summary,
        description=about or summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def example(call: str) -> str:
    """The end of a command's help."""
    return f"example:\n  fedwright {call}"


def add_run_folder(parser: argparse.ArgumentParser) -> None:
    """Add the folder of a run that is looked at."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, nargs="?", help="default: the newest in runs/")


def add_print_json(parser: argparse.ArgumentParser, what: str = "JSON") -> None:
    """Add what makes a command print for programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} instead")


def add_result_file(parser: argparse.ArgumentParser) -> None:
    """Add where the result of a run is written for programs."""
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the result as JSON too")


def add_rounds(parser: argparse.ArgumentParser) -> None:
    """Add what gives a run more rounds."""
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="how many rounds in all, instead of run.rounds; more extend a run"
    )


def add_anew(parser: argparse.ArgumentParser) -> None:
    """Add what begins a run of a config once more."""
    parser.add_argument(
        "--anew", action="store_true", help="begin once more; the run that is there gets another folder, NAME.1"
    )


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add where Prometheus may ask."""
    parser.add_argument(
        "--metrics-port",
        default="",
        metavar="PORT",
        help="serve /metrics, /healthz and /readyz there, to this machine alone; HOST:PORT for others too",
    )


def new_file(text: str) -> Path:
    """A file that can be written, its folder made where it is missing; checked before the work is done, not after."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise argparse.ArgumentTypeError(
            f"the folder {path.parent} cannot be made ({err.strerror}); name another"
        ) from err
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; name a file in a folder of yours")
    return path
