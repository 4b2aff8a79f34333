"""`fedwright server`: run, resume, look at, order, check and export runs; enroll devices; serve as an edge."""

import argparse
import json
import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.cli.arguments import (
    add_anew,
    add_metrics,
    add_print_json,
    add_result_file,
    add_rounds,
    add_run_folder,
    command,
    example,
    new_file,
)
from fedwright.cli.logs import add_log_options, say, start_logging
from fedwright.cli.page import add_page_options, start_page
from fedwright.cli.run_lifecycle import begin_anew, say_complete
from fedwright.cli.run_records import add_audit, add_check
from fedwright.cli.server_ctl import add_ctl
from fedwright.cli.server_link import add_broker_options, open_link, with_metrics, with_options
from fedwright.cli.trust_commands import add_trust

if TYPE_CHECKING:
    from fedwright.protocol.link.base import Link
    from fedwright.server_runtime.config import RunConfig
    from fedwright.server_runtime.run_reader import PastRun

log = logging.getLogger(__name__)

EXAMPLES = """examples:
  fedwright server run run.toml                                     start a broker, wait for devices, run to the end
  fedwright server run run.toml --broker mqtt://server@host:1883    the same over a broker that is running
  fedwright server resume runs/run                                  go on with a run that was stopped
  fedwright server rollback runs/run --to 12                        take the rounds after the 12th back
  fedwright server status                                           how far the newest run has come
  fedwright server ctl runs/run pause                               order something of a run that goes on
  fedwright server check runs/run                                   is what it keeps on disk whole?
  fedwright server audit runs/run --verify                          was what happened written down, and unchanged?
  fedwright server export --device pi-07 model.onnx                 a trained model as one ONNX file
  fedwright server enroll pi-01 --token --broker mqtts://host:8883  certificates for devices
  fedwright server renew                                            certificates that end soon, made anew
  fedwright server revoke pi-02                                     shut a device out again
  fedwright server edge edge.toml                                   serve the devices of a site
"""

RUN_EXAMPLE = """examples:
  fedwright server run run.toml
  fedwright server run run.toml --page           and show it at http://127.0.0.1:8765
  fedwright server run run.toml --rounds 20      more rounds for a run that is complete
  fedwright server run run.toml --anew           the same once more, from its beginning

The run is kept in the folder runs/NAME; the same command goes on where it stopped. `fedwright simulate` of the same
config has a folder of its own, runs/NAME.simulated.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands of the host."""
    server = command(
        subparsers, "server", "run, resume, look at or export a run on the host; serve as an edge", EXAMPLES
    )
    commands = server.add_subparsers(metavar="COMMAND", required=True)
    run = command(commands, "run", "run a config to its end", RUN_EXAMPLE)
    run.add_argument("config", metavar="CONFIG", type=Path, help="a TOML file; `fedwright init` writes one")
    add_rounds(run)
    add_anew(run)
    add_result_file(run)
    add_broker_options(run, default="the config's, else its own")
    add_metrics(run)
    add_page_options(run, optional=True)
    add_log_options(run)
    run.set_defaults(run=_run)
    resume = command(
        commands,
        "resume",
        "go on with a run that was stopped, or give one more rounds",
        "examples:\n  fedwright server resume runs/run\n  fedwright server resume runs/run --rounds 20",
    )
    resume.add_argument("run_folder", metavar="RUN", type=Path, help="the folder of the run")
    add_rounds(resume)
    add_result_file(resume)
    add_broker_options(resume, default="the run's, else its own")
    add_metrics(resume)
    add_page_options(resume, optional=True)
    add_log_options(resume)
    resume.set_defaults(run=_resume)
    _add_rollback(commands)
    summary = "serve devices of a site between them and the host"
    edge = command(commands, "edge", summary, example("server edge edge.toml"))
    edge.add_argument("config", metavar="CONFIG", type=Path, help="a TOML file; `fedwright init edge` writes one")
    edge.add_argument(
        "--shard",
        type=int,
        metavar="N",
        help="which of the config's edge.shards this is (default: one that is free here)",
    )
    add_broker_options(edge, default="the config's host.broker")
    add_metrics(edge)
    add_log_options(edge)
    edge.set_defaults(run=_edge)
    status = command(commands, "status", "say how far a run has come", example("server status runs/run --json"))
    add_run_folder(status)
    add_print_json(status)
    status.set_defaults(run=_status)
    add_ctl(commands)
    add_check(commands)
    add_audit(commands)
    add_trust(commands)
    _add_export(commands)


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command that writes a model."""
    summary = "write a trained model as one ONNX file"
    export = command(commands, "export", summary, example("server export --device pi-07 model.onnx"))
    export.add_argument("file", metavar="FILE", type=new_file, help="where to write it")
    export.add_argument("--device", default="", metavar="ID", help="the model of this device (default: the global one)")
    export.add_argument("--run", dest="run_folder", type=Path, metavar="RUN", help="default: the newest in runs/")
    export.set_defaults(run=_export)


def _add_rollback(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command that takes rounds back."""
    rollback = command(
        commands,
        "rollback",
        "take the last rounds of a run back",
        "example:\n  fedwright server rollback runs/run --to 12\n\n"
        "`fedwright server status` says which rounds a run can go back to: the last run.keep_states and the best one;\n"
        "`fedwright server resume` then goes on from there. What devices keep to themselves is not taken back.",
    )
    rollback.add_argument("run_folder", metavar="RUN", type=Path, help="the folder of the run")
    rollback.add_argument("--to", type=int, required=True, metavar="ROUND", help="the last round that stays")
    rollback.set_defaults(run=_rollback)


def _run(args: argparse.Namespace) -> int:
    from fedwright.protocol.address import mask
    from fedwright.server_runtime.check_run import check_server
    from fedwright.server_runtime.config import config_from_text
    from fedwright.server_runtime.config_sections.reading import read_text
    from fedwright.server_runtime.run_folder.folder import folder_of
    from fedwright.server_runtime.run_reader import continued

    text = read_text(args.config)
    config = config_from_text(text, where=args.config.name)
    if args.anew:
        begin_anew(config)
    config = continued(config, kind="served", rounds=args.rounds or _ordered_rounds(folder_of(config).path))
    config = replace(config, fleet=with_options(config.fleet, args), metrics=with_metrics(config.metrics, args))
    check_server(config)
    # What is kept with the run holds no password.
    return _execute(config, mask(text), args, again=f"fedwright server run {args.config}", anew=" --anew")


def _resume(args: argparse.Namespace) -> int:
    from fedwright.protocol.errors import ConfigError
    from fedwright.server_runtime.run_reader import check_rounds, open_run, with_rounds

    past = open_run(args.run_folder)
    rounds = args.rounds or _ordered_rounds(args.run_folder)
    if past.kind == "simulated":
        raise ConfigError(f"{args.run_folder} holds a simulation; go on with `fedwright simulate CONFIG`")
    config = past.config if rounds is None else with_rounds(past.config, rounds)
    check_rounds(config.run.rounds, past.rounds_done, past.folder)
    config = replace(config, fleet=with_options(config.fleet, args), metrics=with_metrics(config.metrics, args))
    return _execute(config, past.text, args, again=f"fedwright server resume {args.run_folder}")


def _ordered_rounds(folder: Path) -> int | None:
    """The rounds that an order which still waits gives a run; those that were done cannot be taken back so."""
    from fedwright.server_runtime.rounds.orders import ordered_rounds
    from fedwright.server_runtime.watch.history import read_history

    wanted = ordered_rounds(folder)
    return None if wanted is None else max(wanted, read_history(folder).rounds_done)


def _rollback(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.run_folder.rollback import rollback

    taken = rollback(args.run_folder, args.to)
    print(f"{args.run_folder}: {taken} rounds taken back; go on with `fedwright server resume {args.run_folder}`")
    return 0


def _edge(args: argparse.Namespace) -> int:
    from fedwright.cli.signals import terminable
    from fedwright.server_runtime.edge.config import load_edge
    from fedwright.server_runtime.edge.run import run_edge

    config = load_edge(args.config)
    changed = {"broker": args.broker, "password_file": args.password_file and str(args.password_file)}
    config = replace(config, host=replace(config.host, **{key: value for key, value in changed.items() if value}))
    config = replace(config, metrics=with_metrics(config.metrics, args))
    start_logging(args)
    with terminable():
        run_edge(config, shard=args.shard)
    return 0


def _execute(config: "RunConfig", text: str, args: argparse.Namespace, *, again: str, anew: str = "") -> int:
    """Run or go on, then print what each device did; again: the command, anew: what makes it begin once more."""
    from fedwright.server_runtime.run_reader import find_run

    past = find_run(config)
    if past is not None and past.complete and past.config.run.rounds == config.run.rounds:
        _print_result(past, args.json)
        say_complete(past, again, again + anew if anew else "")
        return 0
    _play(config, text, args)
    _print_result(find_run(config), args.json)
    return 0


def _play(config: "RunConfig", text: str, args: argparse.Namespace) -> None:
    """Run or go on over the configured broker, to the end of the run; who loses it to another server stands by."""
    from fedwright.cli.signals import terminable
    from fedwright.protocol.errors import LeaseLost
    from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
    from fedwright.server_runtime.run_folder.folder import folder_of

    folder = folder_of(config)
    with plain_storage_errors(folder.store), terminable(), ExitStack() as stack:
        folder.path.mkdir(parents=True, exist_ok=True)
        start_logging(args, file=folder.path / "server.log")
        for line in _endings(config.fleet.trust):
            log.warning("%s", line)
        if args.page is not None:
            say(f"page: {start_page(args, folder.path.parent, stack)}", as_json=args.log_json)
        try:
            while True:
                try:
                    _serve(config, text, args)
                    return
                except LeaseLost as err:
                    say(f"{err}; this one stands by again", as_json=args.log_json)
        except KeyboardInterrupt:
            say(f"nothing is lost; go on with: fedwright server resume {folder.path}", as_json=args.log_json)
            raise


def _serve(config: "RunConfig", text: str, args: argparse.Namespace) -> None:
    """Lead a run, once it is this server's, until it is over or another server's."""
    from fedwright.cli.progress import Progress
    from fedwright.server_runtime.run import execute
    from fedwright.server_runtime.run_folder.folder import folder_of

    progress = Progress(config.run.rounds, config.fleet.devices, silent=args.log_json)
    with ExitStack() as stack:

        def connect() -> "Link":
            folder = folder_of(config).path
            link = open_link(config.fleet, folder, stack, watch=progress.watch, as_json=args.log_json)
            stack.enter_context(progress)
            return link

        execute(config, text, link=connect, observer=progress)


def _print_result(past: "PastRun | None", json_file: Path | None) -> None:
    """What each device of a run that is over did."""
    from rich.console import Console

    from fedwright.api.results import run_result
    from fedwright.cli.tables import device_table

    if past is None:
        return
    result = run_result(past)
    console = Console()
    console.print(device_table(f"{past.config.method.name}, {past.config.run.rounds} rounds", result["devices"]))
    if result["model_path"] is not None:
        console.print(f"\nglobal model: {result['model_path']}", highlight=False, soft_wrap=True)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _status(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedwright.api.results import run_result
    from fedwright.cli.tables import device_table, figure_text
    from fedwright.server_runtime.rounds.notices import read_notices
    from fedwright.server_runtime.run_folder.folder import NAMES
    from fedwright.server_runtime.run_reader import latest_run, open_run

    past = open_run(args.run_folder or latest_run())
    if args.json:
        print(json.dumps(run_result(past), indent=2))
        return 0
    state = "complete" if past.complete else "not complete" if past.begun else "waiting for its devices"
    done = f"{past.rounds_done} of {past.config.run.rounds} rounds"
    print(f"{past.folder.path}: {NAMES[past.kind]}, {past.config.method.name}, {done}, {state}")
    if past.class_names:
        print(f"  classes: {', '.join(past.class_names)}")
    for number, metrics in enumerate(past.metrics, 1):
        print(f"  round {number}: " + ", ".join(figure_text(name, value) for name, value in metrics.items()))
    Console().print(device_table("", run_result(past)["devices"]))
    if past.privacy is not None:
        print(f"  privacy: {past.privacy.line()}")
    if past.kept:
        print(f"  it can be rolled back to round {', '.join(map(str, past.kept))}")
    for notice in read_notices(past.folder.path):
        print(f"  {notice.line()}")
    for line in _endings(past.config.fleet.trust):
        print(f"  WARN {line}")
    return 0


def _endings(trust: str | None) -> list[str]:
    """Certificates that end soon, one line each."""
    if trust is None or not (Path(trust) / "ca.pem").exists():
        return []
    from fedwright.server_runtime.fleet.expiry import endings

    return [ending.line() for ending in endings(Path(trust))]


def _export(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.run_model import export_device
    from fedwright.server_runtime.run_reader import latest_run, open_run

    past = open_run(args.run_folder or latest_run())
    export_device(past.config, args.device, args.file)
    print(f"wrote {args.file} after {past.rounds_done} rounds of {past.folder.path}")
    return 0
