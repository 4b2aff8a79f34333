"""Models that can be built at any size, by name; a user's own module as `python:package:function`."""

import importlib
import inspect
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.artifacts.structure import ModelSpec
from fedwright.server_runtime.blocks.slicing import group_size
from fedwright.server_runtime.zoo import club, exits, gcn, mobilenet, resnet, sequence, small, vit
from fedwright.server_runtime.zoo.adapters import adapter_names
from fedwright.server_runtime.zoo.base import Input, ModelEntry, ZooModel, build

__all__ = [
    "MODELS",
    "Input",
    "ModelEntry",
    "ZooModel",
    "adapter_names",
    "create",
    "full_sizes",
    "scaled",
    "sizes_of",
]

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for module in (small, club, resnet, mobilenet, vit, sequence, gcn, exits)
    for entry in module.ENTRIES
}

_OWN = "python:"


def create(spec: ModelSpec, *, seed: int) -> nn.Module:
    """The model at its sizes, initialised from the seed; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _own_module(spec) if spec.model.startswith(_OWN) else _zoo_module(spec)


def full_sizes(spec: ModelSpec) -> dict[str, int]:
    """The size of every channel group at width 1; a user's own module has none to choose."""
    return {} if spec.model.startswith(_OWN) else dict(_entry(spec.model).sizes)


def sizes_of(spec: ModelSpec) -> dict[str, int]:
    """The size of every channel group in this very spec: full ones, replaced by those that the spec names."""
    full = full_sizes(spec)
    for group, size in spec.sizes:
        if group not in full:
            raise ConfigError(
                f"model {spec.model} has no channel group {group!r}; it has {', '.join(full) or 'none at all'}"
            )
        if not 1 <= size <= full[group]:
            raise ConfigError(
                f"channel group {group!r} of {spec.model} cannot have size {size}; choose 1 to {full[group]}"
            )
    return full | dict(spec.sizes)


def scaled(spec: ModelSpec, width: float, *, rounding: Literal["floor", "ceil"] = "floor") -> ModelSpec:
    """The spec with every channel group at `width` of its full size, and at least 1; depths and ranks stay."""
    full = full_sizes(spec)
    uncut = MODELS[spec.model].uncut if full else ()
    sizes = {group: group_size(size, width, rounding) for group, size in full.items() if group not in uncut}
    kept = {group: size for group, size in spec.sizes if group in uncut}
    return replace(spec, sizes=tuple(sorted((kept if width == 1 else sizes | kept).items())))


def _entry(name: str) -> ModelEntry:
    if name not in MODELS:
        raise ConfigError(
            f"unknown model {name!r}; choose one of {', '.join(sorted(MODELS))} or python:package:function"
        )
    return MODELS[name]


def _zoo_module(spec: ModelSpec) -> ZooModel:
    entry = _entry(spec.model)
    if spec.classes < 1:
        raise ConfigError(f"model {spec.model} cannot have {spec.classes} classes; give at least 1")
    return build(entry, spec, sizes_of(spec))


def _own_module(spec: ModelSpec) -> nn.Module:
    sizes_of(spec)
    package, _, function = spec.model.removeprefix(_OWN).partition(":")
    if not package or not function:
        raise ConfigError(f"model {spec.model!r} is not of the form python:package:function")
    try:
        make = getattr(importlib.import_module(package), function)
    except (ImportError, AttributeError) as err:
        raise ConfigError(f"model {spec.model!r} cannot be imported: {err}; is it on the Python path?") from err
    if not callable(make):
        raise ConfigError(f"model {spec.model!r} names a {type(make).__name__}; it must name a function")
    try:
        inspect.signature(make).bind(input_shape=spec.input_shape, classes=spec.classes)
    except TypeError as err:
        raise ConfigError(f"model {spec.model!r} must take input_shape and classes by name: {err}") from err
    module = make(input_shape=spec.input_shape, classes=spec.classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {spec.model!r} returned a {type(module).__name__}; it must return a torch.nn.Module")
    return module
