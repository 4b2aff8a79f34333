"""`fedwright bench`: measure what the project promises, one suite at a time."""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedwright.cli.arguments import command, new_file
from fedwright.cli.bars import bars
from fedwright.protocol.errors import ConfigError

# suite -> (module below fedwright.benchmarks with `run(args) -> dict`, what it measures)
SUITES = {
    "train-step": (
        "suites.train_step",
        "CPU time, wall time and memory of a training step, against torch, JAX and onnxruntime-training",
    ),
    "memory": ("suites.memory", "seconds against memory of a step, beside torch that checkpoints and accumulates"),
    "world": ("suites.world", "public architectures that build, train and agree with torch"),
    "large": ("suites.large", "memory of a device that trains adapters on a base too large to be trained whole"),
    "predictor": (
        "suites.predictor",
        "predicted against measured steps and memory of whole models",
    ),
    "fuzz": ("suites.fuzz", "a million hostile examples for every decoder"),
    "hostile": ("suites.hostile", "lying devices, by how updates are put together"),
    "hostile-lenet": ("suites.hostile", "the same with LeNet and four liars of ten"),
    "privacy": ("suites.privacy", "what privacy costs, and attacks that must fail under it"),
    "chaos": ("suites.chaos", "kills and cuts at random moments, against a run left in peace"),
    "soak": ("suites.soak", "memory of server, devices and broker over thousands of rounds"),
    "sums": ("suites.sums", "what sums that hide changes cost a device, beside plain updates and Flower"),
    "scale": (
        "suites.scale",
        "shared stores, kills of the leading server, sharding edges, very many devices",
    ),
    "edges": ("suites.edges", "what reaches the host, with and without edge servers"),
    "page": ("suites.page", "the page's answers, its browser and what it costs, with 1,000 devices"),
    "transport": ("suites.transport", "speed of blobs and messages, against a raw TCP relay"),
    "hasa-titles": (
        "suites.hasa_titles",
        "who should get wide models: HASA's rules on Medium titles",
    ),
    "hasa-cifar": (
        "suites.hasa_cifar",
        "HASA's rules on CIFAR-10, scored by pixels, at one common width too",
    ),
    "sizes-fashion": ("suites.sizes_fashion", "submodel methods at 1/64 to 1 of the parameters"),
    "framp-fashion": (
        "suites.framp_fashion",
        "FRAMP beside submodel methods, also on new devices",
    ),
    "framp-sizes": (
        "suites.framp_sizes",
        "FRAMP beside submodel methods at sizes that nobody trained",
    ),
    "framp-cora": (
        "suites.framp_cora",
        "FRAMP beside submodel methods on pieces of a citation graph",
    ),
    "hyperflora-fashion": (
        "suites.hyperflora_fashion",
        "HyperFLoRA and its controls, on bystanders",
    ),
    "hyperflora-vit": ("suites.hyperflora_fashion", "the same with adapters on the attention of a ViT"),
    "fedconv-fashion": ("suites.fedconv", "FedConv, its rivals, its control and its parts"),
    "fedconv-har": ("suites.fedconv", "the same on phone motion, one device per person"),
    "fedconv-devices": ("suites.fedconv_devices", "the devices' own models by FedConv's parts and by participation"),
    "fedconv-server": ("suites.fedconv_server", "what compression and dilation cost a server"),
    "pfedclub-fashion": ("suites.pfedclub", "unlike models that teach one another"),
    "pfedclub-cifar": ("suites.pfedclub", "the same on CIFAR-10"),
    "pfedclub-studies": ("suites.pfedclub", "one architecture, more devices, fewer active, other K and finalists"),
    "pfedclub-server": (
        "suites.pfedclub_server",
        "what teachers cost a server, from 5 to 50 devices",
    ),
    "hypernet": (
        "suites.hypernet",
        "what writing models costs a server, from 10 to 1,000 devices",
    ),
    "simulate": ("suites.simulate", "a round of 100 simulated devices, in seconds"),
    "devices": (
        "suites.devices",
        "time, memory, bytes and energy of every emulated board and round",
    ),
    "methods": ("suites.methods", "all methods at equal budgets, in one table"),
    "growth": (
        "suites.growth",
        "a server's cost over devices, parameters and rounds, with exponents",
    ),
    "bytes": ("suites.sent_bytes", "what updates and models may leave out, and what that costs in accuracy"),
    "peers": ("peers.suite", "ten devices of ours beside ten of Flower, on the same task"),
    "aggregate": ("suites.aggregate", "averaging submodels, against a plain copy"),
}
# option -> (where its value is kept, the suites that have it); the others are for every suite
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "--seeds": (
        "seeds",
        (
            *("bytes", "methods", "hostile", "hostile-lenet", "privacy", "hasa-titles", "hasa-cifar", "sizes-fashion"),
            *("framp-fashion", "framp-sizes", "framp-cora", "hyperflora-fashion", "hyperflora-vit"),
            *("fedconv-fashion", "fedconv-har", "fedconv-devices"),
            *("pfedclub-fashion", "pfedclub-cifar", "pfedclub-studies"),
        ),
    ),
    "--methods": ("methods", ("devices", "chaos")),
    "--fleet": ("fleet", ("devices",)),
    "--run": ("run_folder", ("devices",)),
    "--kills": ("kills", ("chaos", "scale")),
    "--edges": ("edges", ("chaos",)),
    "--decoders": ("decoders", ("fuzz",)),
    "--models": ("models", ("train-step", "memory", "world", "predictor")),
    "--threads": ("threads", ("train-step",)),
    "--peers": ("peers", ("train-step",)),
}
# Where a clone keeps what was measured last.
RESULTS = Path("benchmarks/results")
SEARCHES = Path("benchmarks/search")
PACKAGES = ("fedwright", "onnxruntime", "numpy", "torch", "onnx", "paho-mqtt")

EXAMPLES = """examples:
  fedwright bench --list
  fedwright bench train-step --models lenet resnet8 --threads 1 --json steps.json
  fedwright bench train-step --quick --strict
  fedwright bench devices --methods fedconv hasa --fleet demo --quick
  fedwright bench devices --run runs/run
  fedwright bench search methods --quick
  fedwright bench report benchmarks/results --out report
  fedwright bench report --document docs/results.md
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `bench`."""
    parser = command(subparsers, "bench", "measure what the project promises", EXAMPLES)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help="suites (see --list), or: report RESULT…, search SUITE"
    )
    parser.add_argument("--list", action="store_true", help="say which suites there are, with their own options")
    parser.add_argument("--quick", action="store_true", help="shorter and less exact")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help="how many seeds, for suites that have any")
    parser.add_argument("--json", type=new_file, default=None, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="report: folder to write")
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="report: make the marked tables of a Markdown file anew instead"
    )
    parser.add_argument(
        "--track", nargs="+", default=[], metavar="TOOL", help="tell tensorboard, mlflow, wandb or jsonl of all of it"
    )
    parser.add_argument(
        "--track-to",
        type=Path,
        default=Path("runs/bench"),
        metavar="DIR",
        help="where they write (default: runs/bench)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="let a Ray cluster do a suite's simulations: auto, host:port or local"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 unless every check holds")
    parser.add_argument(
        "--edges", type=int, default=None, metavar="N", help="chaos: edge servers that may be killed too"
    )
    parser.add_argument("--kills", type=int, default=None, metavar="N", help="chaos, scale: how many kills")
    parser.add_argument(
        "--decoders", nargs="+", metavar="NAME", help="fuzz: decoders to try; others stay in --json as they are there"
    )
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="devices, chaos: methods to run")
    parser.add_argument("--fleet", metavar="F", help="devices: a mix of `fedwright profiles`")
    parser.add_argument(
        "--run", dest="run_folder", type=Path, metavar="DIR", help="devices: tell of a run of real devices instead"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="train-step, memory, world, predictor: models to measure"
    )
    parser.add_argument("--threads", nargs="+", type=int, metavar="N", help="train-step: thread counts (1 2)")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="train-step: runtimes to measure beside torch (all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the suites; 0 unless `--strict` and a check fails."""
    if args.list or not args.suites:
        _list()
        return 0
    if args.suites[0] == "report":
        return _report(args)
    if args.suites[0] == "search":
        return _search(args)
    _check(args)
    results = [_run_suite(name, args) for name in args.suites]
    if args.json is not None:
        written = results[0] if len(results) == 1 else results
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    holds = all(check["holds"] for result in results for check in result["checks"])
    return 1 if args.strict and not holds else 0


def _list() -> None:
    """What each suite measures, and the options that it has besides those of all."""
    for name, (_, summary) in present_suites().items():
        own = " ".join(option for option, (_, suites) in OPTIONS.items() if name in suites)
        print(f"{name:18} {summary}{f' [{own}]' if own else ''}")


def _check(args: argparse.Namespace) -> None:
    """What would only show after hours."""
    unknown = [name for name in args.suites if name not in present_suites()]
    if unknown:
        raise ConfigError(f"unknown suite {unknown[0]!r}; choose from {', '.join(present_suites())}")
    if args.seeds is not None and args.seeds < 1:
        raise ConfigError(f"--seeds {args.seeds}: give at least one")
    for option, (name, suites) in OPTIONS.items():
        without = [suite for suite in args.suites if suite not in suites]
        if getattr(args, name) is not None and without:
            allowed = f"suite {' or '.join(suites)}" if len(suites) < 4 else "suites that --list shows with it"
            raise ConfigError(f"{option} is for the {allowed} alone; leave it out for {', '.join(without)}")


def _report(args: argparse.Namespace) -> int:
    from fedwright.benchmarks.harness.document_tables import fill_document
    from fedwright.benchmarks.harness.report import read_results, write_report

    paths = [Path(name) for name in args.suites[1:]] or [RESULTS]
    if args.document is not None:
        fill_document(args.document, paths[0])
        print(args.document)
        return 0
    # What a clone has committed is what new results are compared with.
    committed = [] if paths == [RESULTS] or not RESULTS.is_dir() else read_results([RESULTS])
    written = write_report(read_results(paths), args.out, before=committed)
    print(f"{written.markdown}\n{written.page}")
    return 0


def _search(args: argparse.Namespace) -> int:
    """Choose a suite's settings on validation rows, and keep what was tried beside the suites."""
    from fedwright.benchmarks.harness.cluster import on_cluster
    from fedwright.benchmarks.harness.kept_jobs import keeping
    from fedwright.benchmarks.harness.search import search, search_file

    names = args.suites[1:]
    if len(names) != 1 or names[0] not in present_suites():
        raise ConfigError(f"search takes one suite, such as: fedwright bench search methods; got {names}")
    module = importlib.import_module(present_suites()[names[0]][0])
    if not hasattr(module, "search_jobs"):
        raise ConfigError(f"suite {names[0]} has no settings to search; see benchmarks/search for those that have")
    found = search_file(names[0], quick=args.quick)
    with on_cluster(args.ray), keeping(f"{names[0]} search"), bars():
        result = _described(names[0], search(found, module.search_jobs(found)))
    target = args.json or SEARCHES / f"{names[0]}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(target)
    return 0


def present_suites() -> dict[str, tuple[str, str]]:
    """The suites that this installation has, each with its module and what it measures."""
    found = {name: (f"fedwright.benchmarks.{module}", summary) for name, (module, summary) in SUITES.items()}
    return {name: entry for name, entry in found.items() if importlib.util.find_spec(entry[0]) is not None}


def _run_suite(name: str, args: argparse.Namespace) -> dict[str, Any]:
    function: Callable[[argparse.Namespace], dict[str, Any]] = importlib.import_module(present_suites()[name][0]).run
    # One module may serve several suites.
    args = argparse.Namespace(**{**vars(args), "suite": name})
    from fedwright.benchmarks.harness.cluster import on_cluster
    from fedwright.benchmarks.harness.kept_jobs import keeping
    from fedwright.benchmarks.harness.tracking import track_result, tracking

    with on_cluster(args.ray), keeping(name), tracking(args.track, name, args.track_to), bars():
        result = _described(name, function(args))
        track_result(result)
    _show(result)
    return result


def _described(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """The result with what every suite's JSON has."""
    return {
        "suite": name,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": " ".join(["fedwright", *sys.argv[1:]]),
        "versions": {package: _version(package) for package in PACKAGES} | {"python": platform.python_version()},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {_processor()}",
        "seeds": [],
        **result,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or "unknown processor"


def _show(result: dict[str, Any]) -> None:
    """Tables whose rows are records (those under `shown`, else all), then the checks."""
    from rich.console import Console

    from fedwright.benchmarks.harness.tables import columns_of, is_table, text_of
    from fedwright.cli.tables import plain_table

    console = Console()
    tables = result["tables"]
    for title in result.pop("shown", list(tables)):
        rows = tables[title]
        if is_table(rows):
            columns = columns_of(rows)
            table = plain_table(title, columns[:1], [column.replace(" ", "\n") for column in columns[1:]])
            for row in rows:
                table.add_row(*(text_of(row.get(column)) for column in columns))
            console.print(table)
    checks = plain_table(f"{result['suite']}: checks", ["check"], ["value", "target", "holds"])
    for check in result["checks"]:
        checks.add_row(check["name"], text_of(check["value"]), str(check["target"]), "yes" if check["holds"] else "NO")
    console.print(checks)
