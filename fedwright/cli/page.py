"""`fedwright page`: runs, past and present, in a browser."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.cli.arguments import command

if TYPE_CHECKING:
    from fedwright.server_runtime.page.address import PageSettings

EXAMPLES = """examples:
  fedwright page runs/                                      on this machine: http://127.0.0.1:8765
  fedwright page --allow ann --role act --page-people people.toml    a token for somebody
  fedwright page runs/ --page 0.0.0.0:8443 --page-certificate cert.pem --page-key key.pem --page-people people.toml

Without --page-people everybody on this machine may look and act; elsewhere than on a loopback address the page needs
TLS and a file of people. With --page-client-ca people may show a certificate of that issuer instead of a token.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command of the page."""
    page = command(subparsers, "page", "show runs, past and present, in a browser", EXAMPLES)
    page.add_argument(
        "runs", metavar="RUNS", type=Path, nargs="?", default=Path("runs"), help="a folder (default: runs)"
    )
    add_page_options(page, optional=False)
    page.add_argument("--allow", metavar="NAME", help="give somebody a token, put them into --page-people, and end")
    page.add_argument("--role", choices=["look", "act"], default="look", help="--allow: what they may (default: look)")
    page.add_argument("--common-name", default="", metavar="CN", help="--allow: by this certificate, without a token")
    page.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    page.set_defaults(run=run)


def add_page_options(parser: argparse.ArgumentParser, *, optional: bool) -> None:
    """Add where the page listens and who may open it; optional: there is none unless it is asked for."""
    from fedwright.server_runtime.page.address import DEFAULT

    shown = f"where the page listens (default: {DEFAULT})"
    if optional:
        parser.add_argument(
            "--page", metavar="ADDR", nargs="?", const=DEFAULT, help=f"show the run in a browser; {shown}"
        )
    else:
        parser.add_argument("--page", metavar="ADDR", default=DEFAULT, help=shown)
    parser.add_argument("--page-certificate", type=Path, metavar="FILE", help="page: its certificate, for TLS")
    parser.add_argument("--page-key", type=Path, metavar="FILE", help="page: the key of that")
    parser.add_argument("--page-people", type=Path, metavar="FILE", help="page: who may look and who may act")
    parser.add_argument("--page-client-ca", type=Path, metavar="FILE", help="page: issuer of people's certificates")
    parser.add_argument(
        "--page-bench", type=Path, default=Path("report"), metavar="DIR", help="page: what `bench report` wrote"
    )


def settings_of(args: argparse.Namespace) -> "PageSettings":
    """What the options say, checked."""
    from fedwright.server_runtime.page.address import PageSettings

    settings = PageSettings(
        args.page, args.page_certificate, args.page_key, args.page_people, args.page_client_ca, args.page_bench
    )
    settings.check()
    return settings


def run(args: argparse.Namespace) -> int:
    """Serve the page until it is stopped, or let somebody in."""
    from fedwright.protocol.errors import ConfigError

    if args.allow is not None:
        return _allow(args)
    settings = settings_of(args)
    if not args.runs.is_dir():
        raise ConfigError(f"there is no folder {args.runs}; name the one with your runs, or start a run first")
    from fedwright.protocol.support.parent import die_with_parent
    from fedwright.server_runtime.page.serve import make_server

    if args.parent:
        die_with_parent(args.parent)
    server = make_server(args.runs, settings)
    print(f"page: {settings.url}", flush=True)
    server.run()
    return 0 if server.started else 1


def _allow(args: argparse.Namespace) -> int:
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.page.people import allow

    if args.page_people is None:
        raise ConfigError("--allow needs --page-people FILE, which says who may open the page")
    token = allow(args.page_people, args.allow, args.role, certificate=args.common_name)
    if token:
        print(f"the token of {args.allow}, which is kept nowhere else:\n\n  {token}\n")
    else:
        print(f"{args.allow} may open the page with a certificate for {args.common_name}")
    return 0


def start_page(args: argparse.Namespace, runs: Path, stack: ExitStack) -> str:
    """Start a process with the page of a server's run, which ends with the server; returns where it is."""
    import os
    import subprocess
    import sys

    settings = settings_of(args)
    words = [sys.executable, "-m", "fedwright", "page", str(runs), "--page", settings.address]
    words += ["--page-bench", str(args.page_bench), "--parent", str(os.getpid())]
    given = {
        "--page-certificate": args.page_certificate,
        "--page-key": args.page_key,
        "--page-people": args.page_people,
        "--page-client-ca": args.page_client_ca,
    }
    words += [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def end() -> None:
        child.terminate()
        child.wait()

    stack.callback(end)
    return settings.url
