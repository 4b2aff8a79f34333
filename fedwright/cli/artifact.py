"""`fedwright artifact build | inspect | check`: training graphs as files."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwright.cli.arguments import add_print_json, command
from fedwright.cli.bars import bars

if TYPE_CHECKING:
    from fedwright.protocol.artifact import Artifact
    from fedwright.server_runtime.spec import Structure

EXAMPLES = """examples:
  fedwright artifact build lenet -o lenet --input-shape 1,28,28 --classes 10
  fedwright artifact build python:my_pkg:make_model -o mine --input-shape 16 --classes 4 --optimizer adam
  fedwright artifact build run.toml -o graph
  fedwright artifact inspect lenet
  fedwright artifact check lenet --batch 32
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its three actions."""
    about = "Turn a model into a training graph, look at one, or check one as a device does."
    parser = command(subparsers, "artifact", "turn a model into a training graph", EXAMPLES, about=about)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_build(command(actions, "build", "write manifest.json, train.onnx and eval.onnx", EXAMPLES))
    inspect = command(actions, "inspect", "show what an artifact reads, writes and needs", EXAMPLES)
    inspect.add_argument("folder", type=Path)
    add_print_json(inspect, "the manifest as JSON")
    inspect.set_defaults(run=_inspect)
    check = command(actions, "check", "make the safety check of a device and one step with random data", EXAMPLES)
    check.add_argument("folder", type=Path)
    check.add_argument("--batch", type=int, default=8, help="samples in the trial step (default 8)")
    add_print_json(check, "the result as JSON")
    check.set_defaults(run=_check)


def _add_build(build: argparse.ArgumentParser) -> None:
    build.add_argument("model", help="a name from `fedwright models`, python:module:function, or a run's TOML file")
    build.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    build.add_argument("--input-shape", type=_shape, help="one sample's shape, such as 1,28,28")
    build.add_argument("--classes", type=int, help="number of classes")
    build.add_argument("--width", type=float, default=1.0, help="share of the channels of every layer (default 1)")
    build.add_argument("--optimizer", choices=["sgd", "adam", "adamw"], default="sgd")
    build.add_argument("--momentum", type=float, default=0.0)
    build.add_argument("--weight-decay", type=float, default=0.0)
    build.add_argument("--trainable", nargs="+", default=[""], help="name prefixes of the parameters that train")
    build.add_argument("--json", action="store_true", help="print the manifest as JSON")
    build.add_argument(
        "--supported", action=_Supported, help="print the operators that can be trained through, and end"
    )
    build.set_defaults(run=_build)


class _Supported(argparse.Action):
    """Prints what can be trained through and ends, whatever else was asked for."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fedwright.server_runtime.artifacts.supported import supported_operators

        print("\n".join(supported_operators()))
        parser.exit()


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as err:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write it like 1,28,28") from err
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a size below 1")
    return sizes


def _build(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.artifacts.builder import Builder
    from fedwright.server_runtime.artifacts.folder import write_folder

    with bars():
        artifact = Builder().build(_structure(args))
    write_folder(artifact, args.output)
    _show(artifact, as_json=args.json)
    return 0


def _structure(args: argparse.Namespace) -> "Structure":
    from fedwright.server_runtime import zoo
    from fedwright.server_runtime.config import load_config
    from fedwright.server_runtime.model_names import resolve
    from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

    model, shape, classes = args.model, args.input_shape, args.classes
    optimizer = Optimizer(args.optimizer, momentum=args.momentum, weight_decay=args.weight_decay)
    if model.endswith(".toml"):
        config = load_config(Path(model))
        model, optimizer = config.model.model, config.train.optimizer
        listed = config.model.classes
        classes = classes or (len(listed) if isinstance(listed, tuple) else listed)
        shape = shape or config.model.input_shape
    if model in zoo.MODELS:
        shape = shape or zoo.MODELS[model].example_shape
        classes = classes or zoo.MODELS[model].example_classes
    spec = ModelSpec(resolve(model), *_known(model, shape, classes))
    return Structure(
        zoo.scaled(spec, args.width),
        objective=_objective(model),
        optimizer=optimizer,
        trainable=tuple(args.trainable),
    )


def _objective(model: str) -> Any:
    from fedwright.server_runtime.spec import Objective

    return Objective(exits=model.endswith("-exits"))


def _known(model: str, shape: tuple[int, ...] | None, classes: int | None) -> tuple[tuple[int, ...], int]:
    from fedwright.protocol.errors import ConfigError

    if shape is None or classes is None:
        raise ConfigError(f"the input of {model} is not known; give --input-shape and --classes")
    return shape, classes


def _inspect(args: argparse.Namespace) -> int:
    from fedwright.server_runtime.artifacts.folder import read_folder

    _show(read_folder(args.folder), as_json=args.json)
    return 0


def _show(artifact: "Artifact", *, as_json: bool) -> None:
    import msgspec
    from rich.console import Console

    from fedwright.cli.tables import plain_table

    manifest = artifact.manifest
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode())
        return
    table = plain_table(manifest.description, ["kind", "name", "type"], ["shape"])
    rows: list[tuple[str, Any]] = [("batch", spec) for spec in manifest.batch]
    rows += [(slot.role, slot) for slot in manifest.slots if slot.role != "optimizer"]
    rows += [("side", spec) for spec in manifest.sides] + [("frozen", spec) for spec in manifest.frozen]
    rows += [("scalar", spec) for spec in manifest.scalars]
    for kind, spec in rows:
        table.add_row(kind, spec.name, spec.dtype, " x ".join("any" if n == -1 else str(n) for n in spec.shape))
    console = Console()
    console.print(table)
    states = sum(slot.role == "optimizer" for slot in manifest.slots)
    train, evaluation = manifest.files["train.onnx"], manifest.files["eval.onnx"]
    print(f"\noptimizer states: {states}; opset {manifest.opset}, IR {manifest.ir_version}")
    print(f"train.onnx {train.size_bytes / 1e3:.1f} kB, eval.onnx {evaluation.size_bytes / 1e3:.1f} kB")
    print(f"one step needs about {manifest.fixed_bytes / 1e6:.1f} MB + {manifest.sample_bytes / 1e3:.1f} kB per sample")


def _check(args: argparse.Namespace) -> int:
    from fedwright.device_runtime.train.check import check_artifact, need_bytes
    from fedwright.server_runtime.artifacts.folder import read_folder

    artifact = read_folder(args.folder)
    check_artifact(artifact, batch=args.batch)
    loss, seconds = _dry_step(artifact, args.batch)
    need = need_bytes(artifact.manifest, args.batch)
    if args.json:
        print(json.dumps({"loss": loss, "step_s": seconds, "need_bytes": need}))
        return 0
    print(f"{args.folder} is sound: loss {loss:.4f} on random data, {seconds * 1e3:.1f} ms, {need / 1e6:.0f} MB")
    return 0


def _dry_step(artifact: "Artifact", batch: int) -> tuple[float, float]:
    """Loss and seconds of the second of two steps with random weights and data."""
    import time

    import numpy as np

    from fedwright.device_runtime.train.portable import PortableTrainer
    from fedwright.protocol.errors import BadArtifact

    manifest = artifact.manifest
    rng = np.random.default_rng(0)

    def draw(spec: Any, low: float = 0.5, high: float = 1.5) -> Any:
        """Positive numbers by default, since a tensor may be a variance; zero is an index that all tables have."""
        shape = [batch if size == -1 else size for size in spec.shape]
        return (
            rng.uniform(low, high, shape).astype(np.float32) if spec.dtype == "float32" else np.zeros(shape, np.int64)
        )

    trainer = PortableTrainer(
        artifact,
        sides={spec.name: draw(spec) for spec in manifest.sides},
        frozen={spec.name: draw(spec, 0.01, 0.1) for spec in manifest.frozen},
    )
    trained = {slot.name: draw(slot, -0.1, 0.1) for slot in manifest.slots if slot.role == "trainable"}
    trainer.load(trained | {slot.name: draw(slot) for slot in manifest.slots if slot.role == "buffer"})
    data = {spec.name: draw(spec, -1.0, 1.0) for spec in manifest.batch}
    trainer.step(data, learning_rate=1e-3, seed=0)
    start = time.perf_counter()
    result = trainer.step(data, learning_rate=1e-3, seed=1)
    seconds = time.perf_counter() - start
    trainer.predict({name: data[name] for name in manifest.eval_batch})
    if not np.isfinite(result.loss):
        raise BadArtifact(f"a step with random data gives the loss {result.loss}; the graph is not usable")
    return result.loss, seconds
