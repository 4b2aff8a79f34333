"""`fedwright.training_graph`: any torch module as a graph that trains on the stock onnxruntime."""

from collections.abc import Sequence
from typing import Any, Literal

from fedwright.api.graphs import TrainingGraph
from fedwright.api.models import model_name
from fedwright.protocol.artifact import Artifact
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.model_names import resolve
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure


def training_graph(
    model: object,
    *,
    input_shape: Sequence[int],
    classes: int,
    optimizer: Literal["sgd", "adam", "adamw"] | Optimizer = "sgd",
    trainable: Sequence[str] = ("",),
    seed: int = 0,
) -> TrainingGraph:
    """Turn a model into a training graph with its weights.

    model: a `torch.nn.Module`, its class, a function that makes one, or a name from `fedwright models`. trainable:
    prefixes of the names of the parameters that train. seed: for the weights of a model that is made here.
    """
    spec = ModelSpec(resolve(model_name(model)), tuple(input_shape), classes)
    chosen = Optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    exits = spec.model.endswith("-exits")
    artifact = Builder().build(Structure(spec, Objective(exits=exits), chosen, trainable=tuple(trainable)))
    return TrainingGraph(artifact, _wanted(artifact, initial_weights(zoo.create(spec, seed=seed))))


def _wanted(artifact: Artifact, weights: dict[str, Any]) -> dict[str, Any]:
    """The tensors that the graphs read."""
    manifest = artifact.manifest
    names = [slot.name for slot in manifest.slots if slot.role != "optimizer"]
    return {name: weights[name] for name in [*names, *(spec.name for spec in manifest.frozen)]}
