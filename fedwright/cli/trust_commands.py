"""`fedwright server enroll | renew | rotate-key | revoke`: who may join a fleet."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.cli.arguments import command, new_file
from fedwright.cli.logs import add_log_options, start_logging

if TYPE_CHECKING:
    from fedwright.server_runtime.fleet.authority import Authority

ENROLL_EXAMPLES = """examples:
  fedwright server enroll pi-01 --token --broker mqtts://host:8883    let a device make its own key (better)
  fedwright server enroll --listen                                    hand out certificates to who shows a token
  fedwright server enroll --request pi-01.request --broker mqtts://host:8883     the same without a network
  fedwright server enroll pi-01 pi-02 --broker mqtts://host:8883      make keys here too, to be copied
"""


def add_trust(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that say who may join."""
    enroll = command(
        commands, "enroll", "make certificates for devices, and for the broker when it has none", ENROLL_EXAMPLES
    )
    enroll.add_argument("devices", metavar="ID", nargs="*", help="ids of the devices to enroll")
    enroll.add_argument("--broker", metavar="URL", help="mqtts://host:port that the devices will use")
    enroll.add_argument("--fleet", default="default", help="fleet they join (default: %(default)s)")
    _add_folder(enroll)
    enroll.add_argument(
        "--edge", action="append", default=[], metavar="NAME", help="edge server of these devices; enrolled too"
    )
    enroll.add_argument("--host", action="append", default=[], help="further name or address of the broker")
    enroll.add_argument("--token", action="store_true", help="print one-time tokens for `fedwright device enroll`")
    enroll.add_argument("--hours", type=float, default=24.0, metavar="H", help="how long a token is good (default: 24)")
    enroll.add_argument("--request", type=Path, metavar="FILE", help="what `fedwright device enroll --request` wrote")
    enroll.add_argument("--reply", type=new_file, metavar="FILE", help="where the answer to --request goes")
    enroll.add_argument("--listen", type=int, nargs="?", const=0, metavar="PORT", help="serve tokens (default: 8884)")
    add_log_options(enroll)
    enroll.set_defaults(run=_enroll)
    renew = command(
        commands,
        "renew",
        "make new certificates for keys whose certificates end soon",
        "examples:\n  fedwright server renew              all that end within 60 days\n  fedwright server renew pi-02",
    )
    renew.add_argument("names", metavar="ID", nargs="*", help="devices, edges, server, broker (default: who needs it)")
    _add_folder(renew)
    renew.set_defaults(run=_renew)
    rotate = command(
        commands,
        "rotate-key",
        "sign tasks with the next key, which devices accept already",
        "example:\n  fedwright server rotate-key\n\nDevices know two keys: this makes the second one the first. "
        "Copy renewed bundles to devices before the next time.",
    )
    _add_folder(rotate)
    rotate.set_defaults(run=_rotate)
    revoke = command(
        commands,
        "revoke",
        "shut out devices or edges whose certificate must not be used any more",
        "example:\n  fedwright server revoke pi-02",
    )
    revoke.add_argument("devices", metavar="ID", nargs="+", help="ids of the devices to shut out")
    _add_folder(revoke)
    revoke.set_defaults(run=_revoke)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trust", type=Path, default=Path("trust"), metavar="DIR", help="default: %(default)s")


def _enroll(args: argparse.Namespace) -> int:
    if args.listen is not None:
        return _listen(args)
    from fedwright.protocol.errors import ConfigError
    from fedwright.protocol.topics import check_name
    from fedwright.server_runtime.fleet import trust

    if not args.devices and args.request is None:
        raise ConfigError("no device is named; give its id, --request FILE, or --listen")
    # Before anything is written.
    for what, names in (("fleet", [args.fleet]), ("edge", args.edge), ("device", args.devices)):
        for name in names:
            check_name(name, what=what)
    authority = _prepared(args)
    for edge in args.edge:
        bundle = trust.enroll_edge(authority, edge, fleet=args.fleet, broker=args.broker)
        print(f'{edge}: copy {bundle} to the edge server and set bundle = "{bundle.name}" in the section [edge]')
    if args.request is not None:
        _answer(args, authority)
    for device in args.devices:
        if args.token:
            _offer(args, authority, device)
            continue
        bundle = trust.enroll(authority, device, fleet=args.fleet, broker=args.broker, edges=args.edge)
        print(
            f"{device}: copy {bundle} to the device, then run fedwright device run --bundle {bundle.name} --data FILE"
        )
    print(f'server: set trust = "{args.trust}" in the section [fleet]; for a broker that runs by itself also')
    print(f'        broker = "{args.broker}"')
    _say_reload(args.trust)
    return 0


def _prepared(args: argparse.Namespace) -> "Authority":
    """The authority, with files for its broker."""
    from fedwright.protocol.address import parse_url
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.fleet import trust

    if not args.broker:
        raise ConfigError("--broker is missing; give the mqtts:// address that the devices will use")
    address = parse_url(args.broker)
    if address.password is not None:
        raise ConfigError("--broker holds a password, which enrolled devices do not need; leave it out")
    if not address.secure:
        raise ConfigError(f"broker is {args.broker!r} but enrolled devices need an mqtts:// address")
    authority = trust.Authority.open(args.trust)
    if not (args.trust / "broker" / "mosquitto.conf").exists():
        hosts = [address.host, *args.host, "localhost"]
        trust.secure_broker(authority, fleet=args.fleet, hosts=hosts, port=address.port)
        folder = args.trust / "broker"
        print("broker: `fedwright server run` on this machine starts it; to run it elsewhere or all the time:")
        print(f"        mosquitto -c {folder / 'mosquitto.conf'} on {address.host}")
        print(f"        (started by root it runs as mosquitto, so first: chown -R mosquitto {folder})")
    return authority


def _offer(args: argparse.Namespace, authority: "Authority", device: str) -> None:
    from fedwright.protocol.address import parse_url
    from fedwright.server_runtime.fleet.tokens import Tokens

    token = Tokens(authority).offer(device, fleet=args.fleet, broker=args.broker, edges=args.edge, hours=args.hours)
    print(f"{device}: while `fedwright server enroll --listen` runs here, and within {args.hours:g} hours, type there")
    print(f"        fedwright device enroll --server {parse_url(args.broker).host} --token {token}")


def _answer(args: argparse.Namespace, authority: "Authority") -> None:
    import msgspec

    from fedwright.protocol.enrolment import EnrolmentRequest, read_record
    from fedwright.server_runtime.fleet.tokens import certify_request, requested_key

    request = read_record(args.request.read_bytes(), EnrolmentRequest, what=str(args.request))
    reply = certify_request(
        authority,
        request.device,
        requested_key(request),
        fleet=args.fleet,
        broker=args.broker,
        edges=args.edge,
    )
    file = args.reply or args.request.with_suffix(".reply")
    file.write_bytes(msgspec.json.format(msgspec.json.encode(reply)))
    print(f"{request.device}: carry {file} to the device, then run fedwright device enroll --reply {file.name}")


def _listen(args: argparse.Namespace) -> int:
    from fedwright.cli.signals import terminable
    from fedwright.protocol.enrolment import ENROLL_PORT
    from fedwright.server_runtime.fleet.authority import Authority
    from fedwright.server_runtime.fleet.enrolment_service import EnrolmentService

    start_logging(args)
    service = EnrolmentService(Authority(args.trust), port=args.listen or ENROLL_PORT)
    print(f"waiting for devices with a token on port {service.server_port}; Ctrl-C ends it", flush=True)
    with terminable(), service:
        service.serve_forever()
    return 0


def _renew(args: argparse.Namespace) -> int:
    from fedwright.protocol.link.security import WARN_DAYS
    from fedwright.server_runtime.fleet.authority import Authority
    from fedwright.server_runtime.fleet.expiry import endings, renew

    authority = Authority(args.trust)
    names = args.names or [one.name for one in endings(args.trust) if one.name != "authority"]
    if not names:
        print(f"no certificate ends within {WARN_DAYS} days")
    for name in names:
        print(f"{name}: its new certificate is in {renew(authority, name)}; copy cert.pem and bundle.json to it")
    return 0


def _rotate(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.fleet.authority import Authority

    Authority(args.trust).rotate()
    print("tasks are signed with the next key from now on; a running server takes it after a restart")
    print("before you rotate again: `fedwright server renew ID...`, and copy bundle.json to each device")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.fleet import trust

    authority = trust.Authority(args.trust)
    for device in args.devices:
        trust.revoke(authority, device)
        print(f"{device}: its certificate is void; enroll it anew to let it in again")
    _say_reload(args.trust)
    return 0


def _say_reload(folder: Path) -> None:
    print(f"broker: one that `fedwright server run` started reads {folder / 'broker'} again by itself; make another")
    print("        one read it again with: pkill -HUP mosquitto, or systemctl reload mosquitto")
