"""Artifacts for the classic backend: the same forward+loss graph, differentiated by onnxruntime-training.

onnxruntime and onnxruntime-training install one package name, so the generator runs in another environment
(`pip install "fedwright[classic]"`), whose Python is given by its path.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from msgspec import structs
from onnx import ModelProto
from torch import nn

from fedwright.protocol.artifact import Artifact, file_info
from fedwright.protocol.classic_artifact import ClassicFiles, pack_files
from fedwright.protocol.errors import BuildError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts import classic_generate
from fedwright.server_runtime.artifacts.autodiff.finish import finish
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.shapes import measure
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.artifacts.loss import append_loss
from fedwright.server_runtime.spec import Structure

TIMEOUT_S = 300


def build_classic(structure: Structure, *, python: Path, module: nn.Module | None = None) -> Artifact:
    """The artifact of a structure for the classic backend; its eval.onnx and its slots' names are the usual ones."""
    module = zoo.create(structure.spec, seed=0) if module is None else module
    portable = build(structure, module)
    _check(structure, portable)
    manifest = portable.manifest
    trainable = [slot for slot in manifest.slots if slot.role == "trainable"]
    options = {
        "trainable": [slot.name for slot in trainable],
        "frozen": [spec.name for spec in manifest.frozen],
        "optimizer": asdict(structure.optimizer),
        "loss": manifest.loss,
        "metrics": manifest.metrics,
    }
    train = pack_files(_generate(_forward_model(structure, module, portable), options, python))
    return Artifact(
        structs.replace(
            manifest,
            backend="classic",
            files={"train.onnx": file_info(train), "eval.onnx": file_info(portable.eval)},
            slots=trainable,
        ),
        train,
        portable.eval,
    )


def _check(structure: Structure, portable: Artifact) -> None:
    """onnxruntime-training knows two optimizers, keeps no running statistics and draws its own random numbers."""
    optimizer, objective, manifest = structure.optimizer, structure.objective, portable.manifest
    problems = {
        "momentum": optimizer.kind == "sgd" and optimizer.momentum,
        "weight decay of sgd or adam (adamw has it)": optimizer.kind != "adamw" and optimizer.weight_decay,
        "running statistics": any(slot.role == "buffer" for slot in manifest.slots),
        "dropout": any(spec.name != "learning_rate" for spec in manifest.scalars),
        "masks on parameters": objective.element_masks or objective.fiarse,
        "steps in groups": objective.meta_rate or objective.envelope,
    }
    for problem, found in problems.items():
        if found:
            raise BuildError(
                f"{structure.spec.model} uses {problem}, which the classic backend does not offer; use portable"
            )


def _forward_model(structure: Structure, module: nn.Module, portable: Artifact) -> ModelProto:
    """Forward and loss as ONNX, the weights as initializers of zeros: onnxruntime-training finds them by name."""
    frozen = frozenset(spec.name for spec in portable.manifest.frozen)
    trainable = [slot.name for slot in portable.manifest.slots if slot.role == "trainable"]
    forward = export(module, structure.spec, training=True, frozen=frozen)
    graph = forward.graph
    unread = sorted(set(trainable) - set(forward.parameters))
    if unread:
        raise BuildError(f"{structure.spec.model} never reads its parameter {unread[0]}; freeze it or remove it")
    loss = append_loss(graph, forward, structure, trainable)
    _add_in_pairs(graph)
    measure(graph)
    told = [] if loss.correct is None else [(portable.manifest.metrics[0], loss.correct)]
    finish(graph, [(portable.manifest.loss, loss.value), *told])
    weights = {value.name: value for value in graph.inputs if value.name in {*trainable, *frozen}}
    graph.inputs = [value for value in graph.inputs if value.name not in weights]
    graph.initializers.update({name: np.zeros(value.shape, value.dtype) for name, value in weights.items()})
    return graph.to_model()


def _add_in_pairs(graph: Graph) -> None:
    """onnxruntime-training differentiates Add but not Sum."""
    old, graph.nodes = graph.nodes, []
    for node in old:
        if node.op != "Sum":
            graph.nodes.append(node)
            continue
        total = node.inputs[0]
        for term in node.inputs[1:]:
            total = graph.op("Add", total, term)
        graph.nodes.append(Node("Identity", [total], node.outputs))


def _generate(forward: ModelProto, options: Mapping[str, object], python: Path) -> ClassicFiles:
    """Run the generator in its own environment."""
    with tempfile.TemporaryDirectory(prefix="fedwright-classic-") as name:
        folder = Path(name)
        (folder / "forward.onnx").write_bytes(forward.SerializeToString(deterministic=True))
        (folder / "options.json").write_text(json.dumps(options))
        command = [str(python), "-I", classic_generate.__file__, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except OSError as err:
            raise BuildError(
                f"{python} cannot be run ({err.strerror}); name the Python of an environment with fedwright[classic]"
            ) from err
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BuildError(f"onnxruntime-training could not build the artifact: ...{reason[-300:]}")
        return ClassicFiles(
            training=(folder / "training_model.onnx").read_bytes(),
            optimizer=(folder / "optimizer_model.onnx").read_bytes(),
            checkpoint=(folder / "checkpoint").read_bytes(),
        )
