"""The server's way to its broker: one that is named, or its own, which it starts; and what a person is told of it."""

import argparse
import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.cli.logs import say

if TYPE_CHECKING:
    from fedwright.protocol.address import Login
    from fedwright.protocol.link import Link, Watch
    from fedwright.server_runtime.config import FleetSection
    from fedwright.server_runtime.config_sections.metrics import MetricsSection

log = logging.getLogger(__name__)


def add_broker_options(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add --broker and --password-file."""
    from fedwright.protocol.address import PASSWORD_VARIABLE

    shown = f"mqtt://user@host:port or mqtts://host:port (default: {default})"
    parser.add_argument("--broker", metavar="URL", help=shown)
    parser.add_argument(
        "--password-file", type=Path, metavar="FILE", help=f"its password (default: {PASSWORD_VARIABLE}, if set)"
    )


def with_options(fleet: "FleetSection", args: argparse.Namespace) -> "FleetSection":
    """The section [fleet] with the broker that the command line names."""
    if args.broker:
        fleet = replace(fleet, broker=args.broker)
    return fleet if args.password_file is None else replace(fleet, password_file=str(args.password_file))


def with_metrics(section: "MetricsSection", args: argparse.Namespace) -> "MetricsSection":
    """The section [metrics] with what the command line says."""
    return replace(section, listen=args.metrics_port) if args.metrics_port else section


def open_link(
    fleet: "FleetSection", folder: Path, stack: ExitStack, *, watch: "Watch", as_json: bool = False
) -> "Link":
    """The link to the fleet's broker, which is started first when none is named."""
    from fedwright.protocol.link import connect
    from fedwright.server_runtime.config import EMBEDDED
    from fedwright.server_runtime.fleet.trust import Authority, enroll_server
    from fedwright.server_runtime.transport.own_broker import own_broker

    name = f"fedwright-server-{fleet.name}"
    if fleet.trust is None:
        say("DEVELOPMENT MODE: no certificates and no signed tasks; see fedwright server enroll", as_json=as_json)
    if fleet.broker == EMBEDDED:
        own = stack.enter_context(own_broker(fleet, folder / "broker"))
        if not as_json:
            log.info("broker: %s", own.summary)
        say(f"broker: {own.summary}", as_json=as_json)
        _show_join(own.join, own.join_file, as_json=as_json)
        link = connect(own.url, client_id=name, tls=own.tls, login=own.login, watch=watch)
    else:
        tls = None if fleet.trust is None else enroll_server(Authority(Path(fleet.trust)))
        link = connect(fleet.broker, client_id=name, tls=tls, login=_login(fleet), watch=watch)
    stack.callback(link.close)
    return link


def _login(fleet: "FleetSection") -> "Login | None":
    """What the file or the environment says; with certificates only a file counts, in the address a password too."""
    from fedwright.protocol.address import HIDDEN, PASSWORD_VARIABLE, find_login
    from fedwright.protocol.errors import ConfigError
    from fedwright.protocol.link.security import SERVER_NAME

    file = None if fleet.password_file is None else Path(fleet.password_file)
    login = find_login(None, file, user=SERVER_NAME, environment=os.environ if fleet.trust is None else {})
    if login is None and f":{HIDDEN}@" in fleet.broker:
        raise ConfigError(
            f"the password of {fleet.broker} is not kept with the run; give it with --password-file or "
            f"{PASSWORD_VARIABLE}"
        )
    return login


def _show_join(line: str, file: Path | None, *, as_json: bool) -> None:
    """The line for a device on a person's screen; output that goes elsewhere may be kept, so it names the file only."""
    if file is None or (sys.stderr.isatty() and not as_json):
        say(f"on each device, with its own data, run:\n\n  {line}\n", as_json=as_json)
    else:
        say(f"devices join with the line in {file}, which holds a password and is not written to logs", as_json=as_json)
