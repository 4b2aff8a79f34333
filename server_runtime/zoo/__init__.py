"""Models that can be built at any size, by name; a user's own as `python:module:function` or `onnx:file`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Literal

import msgspec
import torch
from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support import plugins
from fedwright.server_runtime import model_names
from fedwright.server_runtime.blocks.convolutions import use_safe_convolutions
from fedwright.server_runtime.blocks.slicing import Axes, group_size, group_sizes
from fedwright.server_runtime.model_names import ONNX
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import (
    exits,
    gcn,
    mobilenet,
    onnx_module,
    pfedclub_cnns,
    resnet,
    sequence,
    small,
    stitched,
    vit,
)
from fedwright.server_runtime.zoo.adapters import adapter_names
from fedwright.server_runtime.zoo.base import Input, ModelEntry, ZooModel, build
from fedwright.server_runtime.zoo.derive_groups import HOW_TO_DECLARE, declared_axes, derived_axes, shrink
from fedwright.server_runtime.zoo.linked import add_links
from fedwright.server_runtime.zoo.low_rank import adapt
from fedwright.server_runtime.zoo.peft_layers import unwrapped

__all__ = [
    "ADAPTED",
    "HOW_TO_DECLARE",
    "MODELS",
    "Adapters",
    "Input",
    "ModelEntry",
    "ZooModel",
    "adapter_names",
    "axes_of",
    "create",
    "full_sizes",
    "named",
    "own_function",
    "scaled",
    "sizes_of",
    "spelled",
    "width_of",
]

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for module in (small, pfedclub_cnns, resnet, mobilenet, vit, sequence, gcn, exits)
    for entry in module.ENTRIES
}

# Before the JSON of `Adapters`: a model with adapters in layers that were named.
ADAPTED = "adapted:"
_OWN = (plugins.PYTHON, ONNX)
_WIDTH = "@"
# Names in which @ is no width.
_MADE = (stitched.STITCHED, stitched.DENSE, ADAPTED, ONNX)


@dataclass(frozen=True)
class Adapters:
    """A model by name, and the adapters that it has beside."""

    model: str
    targets: str | tuple[str, ...]
    rank: int
    scale: float

    @classmethod
    def of(cls, spec: ModelSpec) -> "Adapters":
        """As a spec spells them."""
        return msgspec.json.decode(spec.model.removeprefix(ADAPTED), type=cls)


def create(spec: ModelSpec, *, seed: int) -> nn.Module:
    """The model at its sizes, initialised from the seed; torch's global generator is left as it was."""
    module = _create(spec, seed)
    if not spec.model.startswith((*_MADE, *_OWN)):
        module.zoo_spec = spec  # type: ignore[assignment]
    return module


def is_plain(module: nn.Module, spec: ModelSpec) -> bool:
    """Whether a module is the zoo's own model of that name and these sizes."""
    return getattr(module, "zoo_spec", None) == spec


def _create(spec: ModelSpec, seed: int) -> nn.Module:
    use_safe_convolutions()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec.model.startswith(ADAPTED):
            own = Adapters.of(spec)
            module = create(replace(spec, model=own.model), seed=seed)
            adapt(module, own.targets, rank=own.rank, scale=own.scale)
            return module
        if spec.model.startswith((stitched.STITCHED, stitched.DENSE)):
            return stitched.create(spec.model, spec.input_shape, spec.classes, lambda name: _plain(named(name, spec)))
        module = _plain(spec)
        if spec.links:
            add_links(module, spec.classes, spec.links, spec.link_share)
        return module


def _plain(spec: ModelSpec) -> nn.Module:
    return _own_module(spec) if spec.model.startswith(_OWN) else _zoo_module(spec)


def named(name: str, like: ModelSpec) -> ModelSpec:
    """The model of that name, such as `cnn1` or `mobilenet-v2@0.25` (its width), for the same data as another.

    What an installed package offers becomes `python:module:function` here.
    """
    name = name if name.startswith(_MADE) else model_names.resolve(name)
    model, at, width = (name, "", "") if name.startswith(_MADE) or _WIDTH not in name else name.rpartition(_WIDTH)
    whole = ModelSpec(model, like.input_shape, like.classes, goal=like.goal, loss=like.loss)
    if not at:
        return whole
    try:
        share = float(width)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"model {name!r} asks for the width {width!r}; give a number above 0 and up to 1")
    return scaled(whole, share)


def spelled(spec: ModelSpec) -> str:
    """The name from which `named` makes this spec."""
    if not spec.sizes:
        return spec.model
    full = full_sizes(spec)
    least = max((size / full[group] for group, size in spec.sizes if size > 1), default=0.5 / max(full.values()))
    for digits in (2, 4, 9):
        # Rounded up: a width a hair too small would lose a channel.
        width = ceil(least * 10**digits) / 10**digits
        if 0 < width <= 1 and scaled(replace(spec, sizes=()), width) == spec:
            return f"{spec.model}{_WIDTH}{width:g}" if digits < 9 else f"{spec.model}{_WIDTH}{width:.9f}"
    raise ConfigError(f"model {spec.model} has sizes that no width gives; use it at one width")


def full_sizes(spec: ModelSpec) -> dict[str, int]:
    """The size of every channel group at width 1; derived for a user's own module, none where that fails."""
    if spec.model.startswith(ADAPTED):
        return full_sizes(replace(spec, model=Adapters.of(spec).model))
    if not spec.model.startswith(_OWN):
        return dict(_entry(spec.model).sizes)
    try:
        return dict(_own_groups(replace(spec, sizes=()))[1])
    except ConfigError:
        return {}


def axes_of(spec: ModelSpec) -> Axes:
    """For each parameter and buffer of the whole model, the channel group of every axis (None = fixed)."""
    whole = replace(spec, sizes=())
    return _own_groups(whole)[0] if spec.model.startswith(_OWN) else _zoo_axes(whole)


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
    if not full and width != 1:
        raise ConfigError(_why_uncut(spec))
    uncut = () if spec.model.startswith(_OWN) else MODELS[spec.model].uncut
    sizes = {group: group_size(size, width, rounding) for group, size in full.items() if group not in uncut}
    kept = {group: size for group, size in spec.sizes if group in uncut}
    return replace(spec, sizes=tuple(sorted((kept if width == 1 else sizes | kept).items())))


def width_of(spec: ModelSpec) -> float:
    """Mean share of the channels that are left in each group; depths and ranks do not count."""
    if not spec.sizes:
        return 1.0
    full, sizes = full_sizes(spec), sizes_of(spec)
    uncut = () if spec.model.startswith(_OWN) else MODELS[spec.model].uncut
    shares = [sizes[group] / full[group] for group in full if group not in uncut]
    return sum(shares) / len(shares) if shares else 1.0


def _entry(name: str) -> ModelEntry:
    if name not in MODELS:
        raise ConfigError(
            f"unknown model {name!r}; choose one of {', '.join(sorted(MODELS))} python:module:function or onnx:file"
        )
    return MODELS[name]


def _zoo_module(spec: ModelSpec) -> ZooModel:
    entry = _entry(spec.model)
    if spec.classes < 1:
        raise ConfigError(f"model {spec.model} cannot have {spec.classes} classes; give at least 1")
    return build(entry, spec, sizes_of(spec))


@lru_cache(maxsize=32)
def _zoo_axes(spec: ModelSpec) -> Axes:
    with torch.random.fork_rng(devices=[]):
        return _zoo_module(spec).axes()


def _own_module(spec: ModelSpec) -> nn.Module:
    module = _call_own(spec)
    if spec.sizes:
        if not full_sizes(spec):
            raise ConfigError(_why_uncut(spec))
        shrink(module, axes_of(spec), sizes_of(spec), spec.input_shape)
    return module


@lru_cache(maxsize=32)
def _own_groups(spec: ModelSpec) -> tuple[Axes, dict[str, int]]:
    """Axes and full sizes of a user's own module."""
    with torch.random.fork_rng(devices=[]):
        module = _call_own(spec)
        axes = declared_axes(module) or derived_axes(module, spec.input_shape)
    return axes, group_sizes({name: value.numpy() for name, value in module.state_dict().items()}, axes)


def _why_uncut(spec: ModelSpec) -> str:
    reason = f"no channel group was found in it; {HOW_TO_DECLARE}"
    try:
        _own_groups(replace(spec, sizes=()))
    except ConfigError as err:
        reason = str(err)
    return f"model {spec.model} can only be used whole: {reason}, give it width 1 or use a model of the zoo"


def own_function(model: str) -> Callable[..., object]:
    """The function that makes a user's own module, by its name `python:module:function`."""
    make = plugins.parse(plugins.MODELS, model).load()
    if not callable(make):
        raise ConfigError(f"model {model!r} names a {type(make).__name__}; it must name a function")
    found: Callable[..., object] = make
    return found


def _call_own(spec: ModelSpec) -> nn.Module:
    if spec.model.startswith(ONNX):
        return onnx_module.create(spec)
    make = own_function(spec.model)
    try:
        inspect.signature(make).bind(input_shape=spec.input_shape, classes=spec.classes)
    except TypeError as err:
        raise ConfigError(f"model {spec.model!r} must take input_shape and classes by name: {err}") from err
    module = make(input_shape=spec.input_shape, classes=spec.classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {spec.model!r} returned a {type(module).__name__}; it must return a torch.nn.Module")
    return unwrapped(module)
