"""`fedwright device run | profile | doctor | enroll | policy | wheelhouse | install-service`: the agent on a board."""

import argparse
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.cli.arguments import add_metrics, add_print_json, command, example, new_file
from fedwright.cli.device_enroll import add_enroll
from fedwright.cli.logs import add_log_options, start_logging
from fedwright.cli.wheelhouse import add_wheelhouse
from fedwright.device_runtime.config import AgentConfig, default_state
from fedwright.protocol.address import DEVICE_USER, PASSWORD_VARIABLE, find_login, split_password
from fedwright.protocol.errors import ConfigError

if TYPE_CHECKING:
    from fedwright.device_runtime.doctor import Finding

EXAMPLES = """examples:
  fedwright device doctor                                               what is missing on this board
  fedwright device enroll --server host --token TOKEN                   get a certificate for a key made here
  fedwright device profile                                              how fast this board trains
  fedwright device run --broker mqtt://host:1883 --data npz:data.npz    serve in the foreground
  sudo fedwright device install-service --bundle DIR --data npz:data.npz    serve from now on
"""

RUN_EXAMPLE = """example:
  fedwright device run --broker mqtt://host:1883 --data npz:data.npz --device pi-07
  fedwright device run --broker mqtt://host:1883 --classes 3,7          no data: get a model for these classes

data sources:
  npz:file.npz             arrays x, y (optional x_holdout, y_holdout, classes: how many, or their names)
  npy:folder               x.npy, y.npy and so on, memory-mapped
  csv:file.csv             a header line; label, a number or a name, in the column `label`, else in the last one
  images:folder            one folder per class, called by its name
  graph:file.npz           nodes x with classes y, and edges [m, 2] between them (optional holdout: node numbers)
  python:module:function   a function that returns (x, y), in this folder or installed
  scheme:place             what an installed package reads (entry points fedwright.sources)
  classes:3,7              no data, only which classes there are: the same as --classes 3,7
  options after a question mark: ?classes=10, csv also ?label=NAME&shape=1,28,28
"""

MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands of a device."""
    device = command(subparsers, "device", "run, check or install the agent on a device", EXAMPLES)
    commands = device.add_subparsers(metavar="COMMAND", required=True)
    run = command(commands, "run", "run the agent in the foreground", RUN_EXAMPLE)
    _agent_options(run, required=True)
    run.add_argument("--quiet", action="store_true", help="log problems only")
    add_log_options(run)
    run.set_defaults(run=_run)
    call = "device doctor --broker mqtt://host:1883 --data npz:data.npz"
    doctor = command(commands, "doctor", "say what this board lacks, and what to do about it", example(call))
    _agent_options(doctor, required=False)
    add_print_json(doctor, "a JSON list")
    doctor.set_defaults(run=_doctor)
    summary = "measure how fast this board trains; the agent tells the server"
    profile = command(commands, "profile", summary, example("device profile --threads 4 --broker mqtt://host:1883"))
    _agent_options(profile, required=False)
    profile.add_argument("--json", action="store_true", help="print the profile as JSON")
    profile.add_argument(
        "--out", type=new_file, metavar="FILE", help="where to keep it (default: profile.json in --state)"
    )
    profile.set_defaults(run=_profile)
    add_enroll(commands, default_device())
    add_wheelhouse(commands)
    policy = command(
        commands,
        "policy",
        "print an example of what the owner of a device may forbid to servers",
        "example:\n  fedwright device policy > ~/.config/fedwright/policy.toml",
    )
    policy.set_defaults(run=_policy)
    install = command(
        commands,
        "install-service",
        "write a systemd unit that keeps the agent running",
        "example:\n  sudo fedwright device install-service --bundle pi-07 --data npz:/srv/data.npz",
    )
    _agent_options(install, required=True)
    install.add_argument("--user", action="store_true", help="a unit of your own instead of a system unit")
    install.add_argument("--run-as", metavar="NAME", help="account of a system unit (default: yours)")
    install.add_argument("--unit-dir", type=Path, metavar="DIR", help="where to write the unit")
    install.add_argument("--dry-run", action="store_true", help="print the unit, write nothing")
    install.set_defaults(run=_install, state=None)


def _agent_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    add = parser.add_argument
    add("--bundle", type=Path, metavar="DIR", help="the folder that `fedwright server enroll` made for this device")
    add("--broker", default="", metavar="URL", help="mqtt://host:port or mqtts://host:port (default: the bundle's)")
    add(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"the broker's password (default: {PASSWORD_VARIABLE}, if set)",
    )
    add("--policy", type=Path, metavar="FILE", help="what servers may ask (default: ~/.config/fedwright/policy.toml)")
    data = parser.add_mutually_exclusive_group(required=required)
    data.add_argument("--data", default="", metavar="SOURCE", help="where this device's data is")
    data.add_argument(
        "--classes", default="", metavar="LIST", help="no data: get a model for these classes, such as 3,7 or cat,dog"
    )
    add(
        "--tell",
        default="",
        metavar="LIST",
        help="facts of the data to tell unasked, for servers of earlier releases that do not ask",
    )
    add("--device", metavar="ID", help=f"id in the fleet (default: the bundle's, else {default_device()})")
    add("--fleet", help="fleet to join (default: the bundle's, else default)")
    add("--edge", action="append", default=[], metavar="NAME", help="edge server instead of a fleet; others take over")
    add(
        "--shards",
        type=_whole,
        metavar="N",
        help="there are N edges of the name given as --edge, for devices to spread over",
    )
    add("--patience", type=float, default=15.0, metavar="S", help="go to the next --edge after so long in silence")
    add("--keep-alive", type=_whole, default=120, metavar="S", help="seconds between pings (default: %(default)s)")
    add("--state", type=Path, default=default_state(), metavar="DIR", help="journal and blobs (default: %(default)s)")
    add("--threads", type=_whole, default=0, metavar="N", help="threads to train with (default: as many as pay)")
    add("--backend", default="portable", help="portable or classic (default: %(default)s)")
    add("--provider", default="cpu", help="cpu, cuda or auto (default: %(default)s)")
    add("--holdout", type=float, default=0.2, metavar="RATIO", help="share kept for measuring (default: %(default)s)")
    add("--profile", default="", help="name of the emulated device, for the report")
    add("--max-temperature", type=float, metavar="C", help="pause training when the board is hotter")
    add("--min-battery", type=float, metavar="RATIO", help="pause training when less is left and it is not charging")
    add("--max-load", type=float, metavar="RATIO", help="pause training when others use more of each core")
    add("--round-seconds", type=float, metavar="S", help="most seconds of work that a round may ask of this device")
    add("--round-mb", type=float, metavar="MB", help="most MB that a round may send to and from this device")
    add("--noise", type=float, default=0.0, metavar="RATIO", help="noise on what is told about the data (default: 0)")
    add(
        "--hide-counts",
        action="store_true",
        help="tell nothing of the data but sums over 3 devices or more (secure_sum)",
    )
    add("--model", default="", metavar="NAME", help="architecture to keep, for methods that let devices have their own")
    add("--nice", type=int, default=5, metavar="N", help="step back behind other programs, 0 to 19 (default: 5)")
    add("--evaluate-only", action="store_true", help="measure models on the data, never train")
    add("--once", action="store_true", help="leave when the run is over")
    add_metrics(parser)


def config_of(args: argparse.Namespace) -> AgentConfig:
    """The agent's settings from the command line; what is not given there comes from the bundle."""
    if args.edge and args.fleet:
        raise ConfigError("--edge and --fleet are both given; an edge serves the fleet of its own name, keep --edge")
    broker, device, fleets = "", default_device(), ["default"]
    if args.bundle is not None and not (args.broker and args.device and (args.fleet or args.edge)):
        from fedwright.protocol.link.security import read_bundle

        info = read_bundle(args.bundle).info
        broker, device, fleets = info.broker, info.device, info.edges or [info.fleet]
    url, given = split_password(args.broker or broker)
    # A certificate is all that an enrolled device needs, unless it is told otherwise.
    environment = os.environ if args.bundle is None else {}
    fleet, *further = _edges(args, args.device or device) or ([args.fleet] if args.fleet else fleets)
    return AgentConfig(
        broker=url,
        login=find_login(given, args.password_file, user=DEVICE_USER, environment=environment),
        password_file=args.password_file,
        policy=args.policy,
        device=args.device or device,
        data=f"classes:{args.classes}" if args.classes else args.data,
        tell=_facts(args.tell),
        fleet=fleet,
        further=tuple(further),
        patience_s=args.patience,
        keep_alive_s=args.keep_alive,
        state=args.state,
        threads=args.threads,
        backend=args.backend,
        provider=args.provider,
        holdout_ratio=args.holdout,
        profile=args.profile,
        trains=not args.evaluate_only,
        once=args.once,
        bundle=args.bundle,
        most_temperature_c=args.max_temperature,
        least_battery_ratio=args.min_battery,
        most_load_ratio=args.max_load,
        nice=args.nice,
        round_s=args.round_seconds,
        round_mb=args.round_mb,
        noise_ratio=args.noise,
        model=args.model,
        hide_counts=args.hide_counts,
        metrics=args.metrics_port,
    )


def _edges(args: argparse.Namespace, device: str) -> list[str]:
    """The edges to go to, in this order."""
    if args.shards is None:
        return list(args.edge)
    if len(args.edge) != 1:
        raise ConfigError("--shards says how many edges there are of one name; give that name as --edge, once")
    from fedwright.protocol.rendezvous import preferred, shard_names

    return preferred(shard_names(args.edge[0], args.shards), device)


def _facts(text: str) -> tuple[str, ...]:
    # The doctor must work where msgspec is what is missing.
    if not text:
        return ()
    from fedwright.protocol.data_summary import FACTS

    facts = tuple(filter(None, text.split(",")))
    wrong = sorted(set(facts) - set(FACTS))
    if wrong:
        raise ConfigError(f"--tell has {wrong[0]!r}; it may list {', '.join(FACTS)}")
    return facts


def _with_broker(config: AgentConfig) -> AgentConfig:
    if not config.broker:
        raise ConfigError("no broker is given; add --broker mqtt://host:1883 or --bundle DIR")
    return config


def default_device() -> str:
    """The host's name, as far as it may stand in a topic."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "-", socket.gethostname())[:64] or "device"


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    from fedwright.device_runtime.start import run_agent

    config = _with_broker(config_of(args))
    start_logging(args, device=config.device, quiet=args.quiet)
    run_agent(config)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from fedwright.device_runtime.doctor import diagnose

    return print_findings(diagnose(config_of(args)), as_json=args.json)


def print_findings(findings: "Sequence[Finding]", *, as_json: bool) -> int:
    """Show what a doctor found; the exit code says whether something is amiss."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{MARKS[finding.level]}  {finding.what}" + (f" -> {finding.remedy}" if finding.remedy else ""))
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _policy(args: argparse.Namespace) -> int:
    from fedwright.device_runtime.policy import EXAMPLE

    print(EXAMPLE, end="")
    return 0


def _profile(args: argparse.Namespace) -> int:
    from fedwright.device_runtime.doctor import is_served
    from fedwright.device_runtime.profiler.link import measure_link
    from fedwright.device_runtime.profiler.profile import measure_profile
    from fedwright.device_runtime.profiler.store import PROFILE_NAME, save_profile

    config = config_of(args)
    out = args.out or config.state / PROFILE_NAME
    shown = _progress() if sys.stderr.isatty() else None
    # Small graphs are trained with one thread; profiles for more are kept beside it.
    found = measure_profile(threads=config.threads or 1, provider=config.provider, progress=shown)
    if shown is not None:
        print(file=sys.stderr)
    if config.broker and not is_served(config):
        found = replace(
            found, link=measure_link(config.broker, device=config.device, tls=config.tls(), login=config.login)
        )
    save_profile(out, found)
    if args.json:
        print(found.to_json().decode())
        return 0
    print(f"{found.key}: {len(found.kinds)} kinds of operators in {found.seconds:.0f} s")
    print(f"whole steps lie within {found.spread:.0%} of what they predict; two passes differ by {found.repeat:.0%}")
    for name, value in found.link.items():
        print(f"link {name} {value:.4g}")
    for warning in found.warnings:
        print(f"WARN  {warning}")
    print(f"wrote {out}")
    return 0


def _progress() -> Callable[[int, int, str], None]:
    """What shows how far the profile is, and how long it will take from here."""
    began_s, width = time.monotonic(), 30

    def show(done: int, of: int, what: str) -> None:
        filled = width * done // of
        left_s = (time.monotonic() - began_s) / done * (of - done) if done else 0.0
        bar = "#" * filled + "." * (width - filled)
        print(f"\r[{bar}] {done}/{of} {left_s:3.0f} s left {what:24.24}", end="", file=sys.stderr, flush=True)

    return show


def _install(args: argparse.Namespace) -> int:
    from fedwright.device_runtime.service import SYSTEM_STATE, install, make_unit

    config = _with_broker(config_of(args))
    if args.state is None:
        config = replace(config, state=default_state() if args.user else SYSTEM_STATE)
    unit = make_unit(config, system=not args.user, unit_dir=args.unit_dir, user=args.run_as)
    if args.dry_run:
        print(unit.text, end="")
        return 0
    install(unit)
    print(f"wrote {unit.path}; now start it with")
    for step in unit.next_steps:
        print(f"  {step}")
    return 0
