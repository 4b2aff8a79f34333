"""The one command `fedwright`: imports only the command that was asked for, and turns errors into one sentence."""

import argparse
import errno
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from fedwright import __version__
from fedwright.cli.arguments import Parser
from fedwright.protocol.errors import FedwrightError

INTERRUPTED = 130
EXIT_CODES = {
    0: "all went well",
    1: "it failed, and said why; or a check of `doctor`, `validate`, `server check`, `bench --strict` does not hold",
    2: "the command line was not understood",
    INTERRUPTED: "it was stopped by Ctrl-C or SIGTERM; nothing is lost",
}
REMEDIES = {
    errno.ENOENT: "check the path",
    errno.EACCES: "give this user the right to it, or name another place",
    errno.EPERM: "give this user the right to it, or name another place",
    errno.EROFS: "name another place",
    errno.ENOSPC: "free some space there; what was finished is kept",
    errno.EDQUOT: "free some space there; what was finished is kept",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EADDRINUSE: "stop what listens there",
}


class CommandGroup(NamedTuple):
    """A module of commands with a line of help for each, so that help itself imports nothing."""

    module: str
    commands: dict[str, str]


GROUPS = [
    CommandGroup("fedwright.cli.demo", {"demo": "a whole fleet on this machine: broker, server and emulated devices"}),
    CommandGroup("fedwright.cli.server", {"server": "run, resume, look at or export a run on the host"}),
    CommandGroup("fedwright.cli.device", {"device": "run, check or install the agent on a device"}),
    CommandGroup("fedwright.cli.page", {"page": "show runs, past and present, in a browser"}),
    CommandGroup("fedwright.cli.top", {"top": "the fleet of a run in this terminal"}),
    CommandGroup("fedwright.cli.simulate", {"simulate": "run a config on this machine, hundreds of devices"}),
    CommandGroup("fedwright.cli.bench", {"bench": "measure what the project promises"}),
    CommandGroup("fedwright.cli.artifact", {"artifact": "turn a model into a training graph"}),
    CommandGroup(
        "fedwright.cli.listings",
        {
            "methods": "the methods there are",
            "models": "the models there are",
            "profiles": "the device profiles there are",
            "datasets": "the data sets there are",
        },
    ),
    CommandGroup(
        "fedwright.cli.init",
        {"init": "print a commented config for a method", "validate": "check a config without running it"},
    ),
    CommandGroup("fedwright.cli.new", {"new": "make a folder with a config, a model and data that runs at once"}),
    CommandGroup("fedwright.cli.host_doctor", {"doctor": "say what this host lacks, and what to do about it"}),
    CommandGroup(
        "fedwright.cli.help_texts",
        {
            "explain": "say what an error code means and what helps",
            "completion": "print what makes a shell complete commands",
            "man": "write manual pages",
        },
    ),
]

EXAMPLES = """examples:
  fedwright demo                                  a fleet of eight emulated devices in about a minute
  fedwright init fedavg > run.toml                a config to start from
  fedwright server run run.toml                   on the host
  fedwright device run --broker mqtt://host:1883 --data npz:data.npz    on each device
"""


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """A parser that knows every command by name and the chosen one in full."""
    parser = Parser(
        prog="fedwright",
        description="Trains one learning task across a fleet of unequal edge devices.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fedwright {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for group in GROUPS:
        if command in group.commands:
            importlib.import_module(group.module).add_parser(subparsers)
        else:
            for name, summary in group.commands.items():
                subparsers.add_parser(name, help=summary, add_help=False)
    return parser


def sentence_of(err: OSError) -> str:
    """What went wrong with a file or a connection, and what to do about it."""
    what = err.strerror or str(err) or type(err).__name__
    where = f"{err.filename}: " if err.filename else ""
    return f"{where}{what}; {REMEDIES.get(err.errno or 0, 'mend that and try again')}"


def _hide_password() -> None:
    """Start again without the password of a broker's URL, which everybody can read in the list of processes."""
    from fedwright.protocol.address import PASSWORD_VARIABLE, split_password

    words = list(sys.orig_argv[1:])
    for place, word in enumerate(words):
        option, url = word.split("=", 1) if word.startswith("--broker=") else ("", word)
        try:
            url, password = split_password(url)
        except FedwrightError:
            # The command itself says what is wrong with it.
            continue
        if password is not None:
            words[place] = f"{option}={url}" if option else url
            os.execve(sys.executable, [sys.executable, *words], os.environ | {PASSWORD_VARIABLE: password})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if argv is None and any("://" in word and "@" in word for word in sys.argv):
        _hide_password()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    try:
        args = build_parser(command).parse_args(arguments)
        return int(args.run(args))
    except FedwrightError as err:
        print(f"fedwright: {err} [{_code(err)}]", file=sys.stderr)
        return 1
    except ModuleNotFoundError as err:
        missing = (err.name or "").split(".")[0]
        if missing in ("", "fedwright"):
            raise
        extra = "device" if command == "device" else "server"
        print(
            f'fedwright: {command} needs {missing}; install it with pip install "fedwright[{extra}]"', file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("fedwright: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as `head` does; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as err:
        logging.getLogger(__name__).debug("the command ended with an error of the system", exc_info=err)
        print(f"fedwright: {sentence_of(err)} [{_code(err)}]", file=sys.stderr)
        return 1


def _code(err: BaseException) -> str:
    """What `fedwright explain` knows more about."""
    from fedwright.cli.explanations import explain

    return explain(err).code
