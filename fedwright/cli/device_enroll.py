"""`fedwright device enroll`: this device makes its own key and gets a certificate for it."""

import argparse
from pathlib import Path

from fedwright.cli.arguments import command, new_file
from fedwright.protocol.errors import ConfigError

EXAMPLES = """examples:
  fedwright device enroll --server host --token pi-01.SECRET.MARK      the line that the server printed
  fedwright device enroll --device pi-01 --request pi-01.request       without a network: carry this to the server,
  fedwright device enroll --device pi-01 --reply pi-01.reply           and its answer back

The key is made here and never leaves the bundle's folder; start with fedwright device run --bundle pi-01 --data FILE.
"""


def add_enroll(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", default: str) -> None:
    """Add the command; default: this device's name."""
    enroll = command(commands, "enroll", "get a certificate for a key that this device makes", EXAMPLES)
    enroll.add_argument("--server", metavar="HOST", help="host or host:port of the authority")
    enroll.add_argument("--token", default="", help="the one-time token for this device")
    enroll.add_argument("--device", default=default, metavar="ID", help="id, without a token (default: %(default)s)")
    enroll.add_argument("--request", type=new_file, metavar="FILE", help="write a request to be carried to the server")
    enroll.add_argument("--reply", type=Path, metavar="FILE", help="what the server answered to it")
    enroll.add_argument("--out", type=Path, metavar="DIR", help="the bundle's folder (default: the device's id)")
    enroll.set_defaults(run=_enroll)


def _enroll(args: argparse.Namespace) -> int:
    import msgspec

    from fedwright.device_runtime.enrol import enroll_at, keep_reply, request_for
    from fedwright.protocol.enrolment import EnrolmentReply, read_record, read_token

    if args.server and args.token:
        folder = args.out or Path(read_token(args.token).device)
        reply = enroll_at(args.server, args.token, folder)
    elif args.reply is not None:
        folder = args.out or Path(args.device)
        reply = keep_reply(read_record(args.reply.read_bytes(), EnrolmentReply, what=str(args.reply)), folder)
    elif args.request is not None:
        folder = args.out or Path(args.device)
        args.request.write_bytes(msgspec.json.encode(request_for(args.device, folder)))
        print(f"{args.request}: carry it to the server, then run fedwright server enroll --request {args.request.name}")
        return 0
    else:
        raise ConfigError("give --server and --token as the server printed them, or --request FILE, or --reply FILE")
    print(f"{reply.info.device}: enrolled for fleet {reply.info.fleet}; now run")
    print(f"  fedwright device run --bundle {folder} --data npz:data.npz")
    return 0
