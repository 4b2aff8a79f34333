"""Which part of a model trains: `[train] trainable` in names of parameters, and the buffers that move with them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_matrix, classifier_names
from fedwright.server_runtime.artifacts.export import buffer_names, initial_weights
from fedwright.server_runtime.blocks.trained_part import BIAS, HEAD, Trainable, last_layers, rank
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.adapter_models import adapted
from fedwright.server_runtime.zoo.low_rank import linear_layers


def with_adapters(spec: ModelSpec, wanted: Trainable) -> ModelSpec:
    """The model with adapters on every linear layer but the classifier, where `wanted` asks for them."""
    if not rank(wanted):
        return spec
    last = (classifier_matrix(spec) or "").rpartition(".")[0]
    layers = linear_layers(zoo.create(spec, seed=0), but=(last,))
    if not layers:
        raise ConfigError(f"{spec.model} has no linear layer for adapters; choose head, bias, last-2 or patterns")
    return adapted(spec, layers, rank=rank(wanted), scale=1.0)


def trained_names(module: nn.Module, spec: ModelSpec, wanted: Trainable) -> tuple[str, ...]:
    """The parameters that train, in the module's order; spec: of the module without adapters."""
    names = [name for name, _ in module.named_parameters()]
    found = _chosen(module, spec, wanted, names)
    if not found:
        raise ConfigError(
            f"trainable = {wanted!r} names no parameter of {spec.model}, which has {', '.join(names[:8])}"
        )
    return tuple(name for name in names if name in found)


def _chosen(module: nn.Module, spec: ModelSpec, wanted: Trainable, names: Sequence[str]) -> set[str]:
    if not isinstance(wanted, str):
        for pattern in wanted:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"trainable has {pattern!r}, which no parameter of {spec.model} is called; such are "
                    f"{', '.join(names[:8])}"
                )
        return {name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)}
    head = set(classifier_names(spec, initial_weights(module)))
    if wanted == HEAD:
        return head
    if rank(wanted):
        return head | set(zoo.adapter_names(module))
    if wanted == BIAS:
        return {name for name in names if "bias" in name.rpartition(".")[2]}
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    kept = layers[-last_layers(wanted) :]
    return {name for name in names if name.rpartition(".")[0] in kept}


def moving_buffers(module: nn.Module, trained: Sequence[str]) -> tuple[str, ...]:
    """Running statistics of layers that are not wholly frozen: they follow the data and go back with the weights."""
    still = set[str]()
    for prefix, layer in module.named_modules():
        own = [f"{prefix}.{name}" if prefix else name for name, _ in layer.named_parameters()]
        if own and not set(own).intersection(trained):
            still.update(f"{prefix}.{name}" if prefix else name for name, _ in layer.named_buffers())
    return tuple(name for name in buffer_names(module) if name not in still)
