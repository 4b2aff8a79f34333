"""`fedwright server ctl`: orders for a run while it goes on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.cli.arguments import command

if TYPE_CHECKING:
    from fedwright.server_runtime.rounds.orders import Order

EXAMPLES = """examples:
  fedwright server ctl runs/run pause                 begin no further round
  fedwright server ctl runs/run resume                go on
  fedwright server ctl runs/run end                   measure and end after this round
  fedwright server ctl runs/run rounds 40             40 rounds in all
  fedwright server ctl runs/run sample-ratio 0.5      half of the devices in each round
  fedwright server ctl runs/run take-out pi-07        go on without a device
  fedwright server ctl runs/run let-in pi-07          and with it again
  fedwright server ctl runs/run profile pi-07         let it measure itself when it is idle

An order is kept in the run's folder until its server takes it, also when that is started only later.
"""
KINDS = ("pause", "resume", "end", "rounds", "sample-ratio", "take-out", "let-in", "profile")


def add_ctl(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command that orders."""
    ctl = command(commands, "ctl", "pause, resume, extend or end a run, take a device out of it", EXAMPLES)
    ctl.add_argument("run_folder", metavar="RUN", type=Path, help="the folder of the run")
    ctl.add_argument("order", choices=KINDS, metavar="ORDER", help=", ".join(KINDS))
    ctl.add_argument("value", nargs="?", default="", help="a number of rounds, a ratio, or the id of a device")
    ctl.add_argument("--id", default="", metavar="ID", help="of the order: given twice with one id it counts once")
    ctl.set_defaults(run=_ctl)


def _ctl(args: argparse.Namespace) -> int:
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.rounds.audit import AUDIT
    from fedwright.server_runtime.run_folder.folder import RunFolder
    from fedwright.server_runtime.run_folder.rounds import order_in
    from fedwright.server_runtime.watch.live import is_served

    if not (args.run_folder / AUDIT).is_file() and not RunFolder(args.run_folder).address.is_file():
        raise ConfigError(f"{args.run_folder} holds no run; give the folder of one, such as runs/NAME")
    order = _order(args)
    if not order_in(args.run_folder, order):
        print(f"{args.run_folder}: this order was given before; it counts once")
    elif is_served(args.run_folder):
        print(f"{args.run_folder}: {args.order} is ordered; the server takes it within a second")
    else:
        print(f"{args.run_folder}: {args.order} is ordered; no server is at work, the next one takes it")
    return 0


def _order(args: argparse.Namespace) -> "Order":
    """The order that the words make."""
    from fedwright.protocol import codec
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.rounds.audit import orderer
    from fedwright.server_runtime.rounds.orders import OF_DEVICE, make_order

    numbers = {"rounds": int, "sample-ratio": float}
    known: dict[str, object] = {"id": args.id or codec.new_id(), "kind": args.order, "by": orderer()["by"]}
    if args.order in numbers:
        try:
            known[args.order.replace("-", "_")] = numbers[args.order](args.value)
        except ValueError as err:
            raise ConfigError(f"{args.order} needs a number, not {args.value!r}") from err
    elif args.order in OF_DEVICE:
        known["device"] = args.value
    elif args.value:
        raise ConfigError(f"{args.order} takes no {args.value!r}; leave it out")
    return make_order(known)
