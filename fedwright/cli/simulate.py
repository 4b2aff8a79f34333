"""`fedwright simulate`: a config's whole run in this machine, without a broker, hundreds of devices."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwright.cli.arguments import add_anew, add_result_file, add_rounds, command
from fedwright.cli.logs import add_log_options, say, start_logging
from fedwright.cli.run_lifecycle import begin_anew, say_complete
from fedwright.protocol.goals import MEASURES

if TYPE_CHECKING:
    from fedwright.server_runtime.config import RunConfig

EXAMPLE = """example:
  fedwright init fedavg > run.toml
  fedwright simulate run.toml --json result.json

  fedwright simulate run.toml --rounds 20        more rounds for one that is complete
  fedwright simulate run.toml --anew             the same once more, from its beginning

The section [simulate] of the config says which data set is dealt to how many devices, or which data of your own:
data = "npz:file.npz" (or csv:, npy:, images:, python:) is dealt out too, data = "devices:folder" has one file or folder
per device. The same seed gives the same model as over a broker. It is kept in the folder runs/NAME.simulated, apart
from `fedwright server run`, which has runs/NAME. Interrupted, the same command goes on where it stopped.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `simulate`."""
    about = "Run a config with in-process devices that do the same tasks as real ones."
    summary = "run a config on this machine, hundreds of devices in a few processes"
    parser = command(subparsers, "simulate", summary, EXAMPLE, about=about)
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a TOML file; `fedwright init` writes one")
    add_rounds(parser)
    add_anew(parser)
    add_result_file(parser)
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the simulation and print what each device came to."""
    from rich.console import Console

    from fedwright.api.results import simulation_result
    from fedwright.cli.progress import Progress, without_arrivals
    from fedwright.cli.tables import device_table
    from fedwright.server_runtime.config_sections.reading import read_text
    from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
    from fedwright.server_runtime.run_folder.folder import folder_of
    from fedwright.server_runtime.run_reader import find_run
    from fedwright.simulation.simulate import simulate

    text = read_text(args.config)
    config = _config(args, text)
    folder = folder_of(config)
    before = find_run(config)
    done = before is not None and before.complete and before.config.run.rounds == config.run.rounds
    with (
        plain_storage_errors(folder.store),
        Progress(config.run.rounds, config.simulate.devices, silent=args.log_json) as progress,
    ):
        folder.path.mkdir(parents=True, exist_ok=True)
        start_logging(args, file=folder.path / "simulate.log")
        try:
            found = simulate(config, text, observer=without_arrivals(progress))
        except KeyboardInterrupt:
            say(f"nothing is lost; the same command goes on from {folder.path}", as_json=args.log_json)
            raise
    result = simulation_result(config, found)
    console = Console()
    console.print(device_table(f"{config.method.name}, {config.run.rounds} rounds", result["devices"]))
    if result["evaluations"]:
        console.print("\n" + summary_line(result), highlight=False, soft_wrap=True)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if before is not None and done:
        again = f"fedwright simulate {args.config}"
        say_complete(before, again, f"{again} --anew")
    return 0


def _config(args: argparse.Namespace, text: str) -> "RunConfig":
    """The config of the simulation, in a folder of its own, with as many rounds as it is to have in all."""
    from fedwright.server_runtime.config import config_from_text
    from fedwright.server_runtime.run_folder.folder import simulation_of
    from fedwright.server_runtime.run_reader import continued

    config = simulation_of(config_from_text(text, where=args.config.name))
    if args.anew:
        begin_anew(config)
    return continued(config, kind="simulated", rounds=args.rounds)


def summary_line(result: dict[str, Any]) -> str:
    """The last measurement in one line."""
    last = result["evaluations"][-1]
    if "mean" not in last:
        figures = [f"{name} {last[name]:.4g} (worst {last[f'{name}_worst']:.4g})" for name in last if name in MEASURES]
        return f"after round {last['round']}: " + ", ".join(figures)
    parts = [f"{name.replace('_', ' ')} {last[name]:.1%}" for name in ("mean", "worst", "p10", "weighted_mean")]
    return f"after round {last['round']}: accuracy " + ", ".join(parts) + f"; perplexity {last['perplexity']:.2f}"
