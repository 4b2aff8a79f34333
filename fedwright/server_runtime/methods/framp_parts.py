"""Which part of a written model a device gets: entries or channels within its share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.structure import ModelSpec
from fedwright.server_runtime.blocks.masking import live_plan, top_channels, top_entries, top_entries_by_layer
from fedwright.server_runtime.blocks.slicing import Axes, Axis
from fedwright.server_runtime.methods.base import Array, Setting, Tensors
from fedwright.server_runtime.methods.sliced import norm_names, number_of


class Choice(Protocol):
    """The settings that decide about parts."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """Shares, given to devices by the number in their id."""
        ...

    @property
    def granularity(self) -> Literal["element", "channel"]:
        """Single entries or whole channels."""
        ...

    @property
    def layerwise(self) -> bool:
        """Whether entries are chosen in each layer on its own."""
        ...

    @property
    def align(self) -> float:
        """Above 0, embeddings are compared and keep their width."""
        ...


class Parts:
    """Chooses parts of models; biases and normalisation are never masked."""

    def __init__(self, setting: Setting, initial: Tensors, choice: Choice) -> None:
        self._spec, self._seed, self._choice = setting.spec, setting.seed, choice
        norms = norm_names(setting.spec)
        self._names = list(initial)
        self._maskable = [name for name, value in initial.items() if value.ndim > 1 and name not in norms]
        self.axes: Axes = zoo.axes_of(setting.spec) if zoo.full_sizes(setting.spec) else {}
        normed = [axis for name in norms for axis in self.axes.get(name, ())]
        self._fixed = {axis.group for axis in normed if isinstance(axis, Axis)}
        if choice.granularity == "channel" and not self.axes:
            raise ConfigError(f"model {setting.spec.model} has no channel groups; use granularity = 'element'")

    def share(self, device: str) -> float:
        """The share of its model that a device gets."""
        return self._choice.sizes[number_of(device, self._seed) % len(self._choice.sizes)]

    def masks(self, weights: Tensors, share: float) -> dict[str, Array]:
        """Which entries of each maskable tensor."""
        choose = top_entries_by_layer if self._choice.layerwise else top_entries
        return choose(weights, self._maskable, share)

    def channels(self, device: str, weights: Tensors) -> Mapping[str, Array]:
        """The channels of the device's part; none where parts are made of entries."""
        if self._choice.granularity == "element":
            return {}
        axes = {name: self.axes[name] for name in self._names}
        embedding = {axis.group for axis in axes[self._maskable[-1]][1:] if isinstance(axis, Axis)}
        return top_channels(weights, axes, self.share(device), whole=embedding if self._choice.align else ())

    def live(self, weights: Tensors) -> Mapping[str, Array]:
        """The channels that a masked model needs to compute the same."""
        return live_plan(weights, self.axes, fixed=self._fixed) if self.axes else {}

    def spec(self, plan: Mapping[str, Array]) -> ModelSpec:
        """The model with these channels."""
        full = zoo.full_sizes(self._spec)
        sizes = {group: len(kept) for group, kept in plan.items()}
        if all(full[group] == size for group, size in sizes.items()):
            return self._spec
        return replace(self._spec, sizes=tuple(sorted(sizes.items())))


def masked(weights: Tensors, masks: Mapping[str, Array]) -> Tensors:
    """The weights with entries outside their mask set to zero."""
    return {n: np.where(masks[n], value, np.float32(0)) if n in masks else value for n, value in weights.items()}
