"""Which part of a written model a device gets: entries or channels within its share."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_matrix
from fedwright.server_runtime.blocks.masking import live_plan, top_channels, top_entries, top_entries_by_layer
from fedwright.server_runtime.blocks.slicing import Axes, Axis
from fedwright.server_runtime.methods.base import Array, Setting, Tensors
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.methods.shared.budget_fit import ChosenSizes
from fedwright.server_runtime.methods.shared.submodels import norm_names
from fedwright.server_runtime.seeds import number_of
from fedwright.server_runtime.spec import ModelSpec

# Sizes that a group may have once dead channels are gone.
GRAINS = 8


class SubmodelMasks:
    """Chooses parts of models, each device's by its size; biases and normalisation are never masked."""

    def __init__(self, params: FrampParams, setting: Setting, initial: Tensors) -> None:
        self._spec, self._seed, self._params = setting.spec, setting.seed, params
        self.chosen = ChosenSizes()
        norms = norm_names(setting.spec)
        self._names = list(initial)
        self._maskable = [name for name, value in initial.items() if value.ndim > 1 and name not in norms]
        axes = zoo.axes_of(setting.spec) if zoo.full_sizes(setting.spec) else {}
        # Counters of normalisation layers are no weights: they stay where they are.
        self.axes: Axes = {name: axes[name] for name in setting.initial if name in axes}
        # Of the user's own module nobody knows whether its activations leave zeros as they are.
        self._compact = not setting.spec.model.startswith(("python:", "onnx:"))
        normed = [axis for name in norms for axis in self.axes.get(name, ())]
        self._fixed = {axis.group for axis in normed if isinstance(axis, Axis)}
        self.by_element = params.granularity == "element" and not params.project
        if not self.by_element and not self.axes:
            raise ConfigError(
                f"model {setting.spec.model} has no channel groups; use granularity = 'element' and project = 0, or"
                f" {zoo.HOW_TO_DECLARE}"
            )
        self._whole = self._embedding_groups() if params.align and not self.by_element else frozenset[str]()

    def levels(self, device: str) -> list[int]:
        """The sizes that a device may get, smallest first: up to the one it would have if it could do anything."""
        sizes, most = self._params.sizes, self._params.sizes[self._own(device)]
        return sorted((level for level, size in enumerate(sizes) if size <= most), key=sizes.__getitem__)

    def note(self, device: str, level: int) -> None:
        """Remember which size a device was given."""
        self.chosen.note(device, level, own=self._own(device))

    def share(self, device: str) -> float:
        """The share of its model that a device has."""
        return self._params.sizes[self.chosen.of(device, self._own(device))]

    def _own(self, device: str) -> int:
        sizes = self._params.sizes
        return (
            sizes.index(max(sizes)) if self._params.choose == "budget" else number_of(device, self._seed) % len(sizes)
        )

    def masks(self, weights: Tensors, share: float) -> dict[str, Array]:
        """Which entries of each maskable tensor; none where everything stays."""
        if share == 1 or not self.by_element:
            return {}
        if self._params.layerwise:
            return top_entries_by_layer(weights, self._maskable, share)
        return top_entries(weights, self._maskable, share, least=self._params.least)

    def channels(self, weights: Tensors, share: float) -> Mapping[str, Array]:
        """The channels of a part; none where parts are made of entries."""
        if self.by_element:
            return {}
        axes = {name: self.axes[name] for name in self._names}
        # What a projection writes is a narrow model; nothing is chosen by magnitude.
        alike = {name: np.ones_like(value) for name, value in weights.items()} if self._params.project else weights
        return top_channels(alike, axes, share, whole=self._whole)

    def _embedding_groups(self) -> frozenset[str]:
        """The groups that the classifier reads: class means are compared there, so that they keep their width."""
        matrix = classifier_matrix(self._spec)
        if matrix is None or matrix not in self.axes:
            raise ConfigError(
                f"no layer of model {self._spec.model} makes its logits from what comes before, so that nothing can be"
                f" aligned; set align = 0 or granularity = 'element'"
            )
        return frozenset(axis.group for axis in self.axes[matrix][1:] if isinstance(axis, Axis))

    def live(self, weights: Tensors) -> Mapping[str, Array]:
        """The channels that a masked model needs to compute the same, and some dead ones to make the number round."""
        full = zoo.full_sizes(self._spec)
        found = live_plan(weights, self.axes, fixed=self._fixed) if self.axes and self._compact else {}
        return {group: _rounded(kept, full[group]) for group, kept in found.items()}

    def spec(self, plan: Mapping[str, Array]) -> ModelSpec:
        """The model with these channels."""
        full = zoo.full_sizes(self._spec)
        sizes = {group: len(kept) for group, kept in plan.items()}
        if all(full[group] == size for group, size in sizes.items()):
            return self._spec
        return replace(self._spec, sizes=tuple(sorted(sizes.items())))


def _rounded(kept: Array, full: int) -> Array:
    """A multiple of one of GRAINS parts of all channels: models of equal sizes share a graph."""
    grain = -(-full // GRAINS)
    missing = min(full, -(-len(kept) // grain) * grain) - len(kept)
    return np.sort(np.concatenate([kept, np.setdiff1d(np.arange(full), kept)[:missing]]))


def with_masks(weights: Tensors, masks: Mapping[str, Array]) -> Tensors:
    """The weights with entries outside their mask set to zero."""
    return {n: np.where(masks[n], value, np.float32(0)) if n in masks else value for n, value in weights.items()}


def threshold(weights: Tensors, masks: Mapping[str, Array]) -> Array:
    """θ: the least |w| that a mask keeps; 0 without masks."""
    kept = [np.abs(weights[name][mask]).min() for name, mask in masks.items()]
    return np.array(min(kept, default=0.0), np.float32)
