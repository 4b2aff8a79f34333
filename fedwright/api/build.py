"""`fedwright.training_graph`: any torch module as a graph that trains on the stock onnxruntime."""

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_type_hints

from fedwright.api import given
from fedwright.api.graphs import TrainingGraph
from fedwright.api.models import model_name
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import CLASSIFY, find_goal
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.model_names import resolve
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure


def training_graph(
    model: object,
    *,
    input_shape: Sequence[int] | int,
    classes: int,
    task: str = CLASSIFY,
    optimizer: Literal["sgd", "adam", "adamw"] | Optimizer = "sgd",
    trainable: Sequence[str] = ("",),
    seed: int = 0,
) -> TrainingGraph:
    """Turn a model into a training graph with its weights.

    model: a `torch.nn.Module`, its class, a function that makes one, or a name from `fedwright models`. input_shape: of
    one example. classes: how many; of numbers to predict, how many each example has. task: classify, multilabel,
    regress, forecast, segment or language. trainable: prefixes of the names of the parameters that train. seed: for the
    weights of a model that is made here.
    """
    spec = ModelSpec(resolve(model_name(model)), _shape(input_shape), classes, goal=find_goal(task).name)
    chosen = _optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    exits = spec.model.endswith("-exits")
    with given.told_by_label():
        artifact = Builder().build(Structure(spec, Objective(exits=exits), chosen, trainable=tuple(trainable)))
        return TrainingGraph(artifact, _wanted(artifact, initial_weights(zoo.create(spec, seed=seed))))


def _shape(wanted: Sequence[int] | int) -> tuple[int, ...]:
    shape = (wanted,) if isinstance(wanted, int) else tuple(wanted)
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ConfigError(f"input_shape is {wanted!r} but must be the shape of one example, such as (1, 28, 28)")
    return shape


def _optimizer(kind: str) -> Optimizer:
    kinds = get_args(get_type_hints(Optimizer)["kind"])
    if kind not in kinds:
        raise ConfigError(f"optimizer is {kind!r}; choose one of {', '.join(kinds)}")
    return Optimizer(kind)  # type: ignore[arg-type]


def _wanted(artifact: Artifact, weights: dict[str, Any]) -> dict[str, Any]:
    """The tensors that the graphs read."""
    manifest = artifact.manifest
    names = [slot.name for slot in manifest.slots if slot.role != "optimizer"]
    return {name: weights[name] for name in [*names, *(spec.name for spec in manifest.frozen)]}
