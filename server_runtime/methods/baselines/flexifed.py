"""FlexiFed: devices with models of one family average the layers that they have in common from the input on.

Paper: Wang et al., FlexiFed: Personalized Federated Learning for Edge Clients with Heterogeneous Model Architectures
(WWW 2023).
Implemented: Basic-Common (layers common to all), Clustered-Common (these, and everything among equal architectures),
Max-Common (layer k among all that share layers 1 … k); running statistics go with their layer; every device counts the
same.
Left out: nothing.
Differs: layers are common when their names and shapes are; a device's model rests on the server between rounds.
"""

from collections import defaultdict
from typing import Literal

import numpy as np

from fedwright.server_runtime.blocks.robust_mean import robust_mean
from fedwright.server_runtime.methods.base import CheckedUpdate, MethodState, Relay, Setting, Tensors
from fedwright.server_runtime.methods.params.personal_models import FlexiFedParams
from fedwright.server_runtime.methods.shared.personal_models import PersonalModels

# A layer: its name, and the names and shapes of its tensors.
Layer = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]


class FlexiFed(PersonalModels):
    """Each common layer ← its mean over the devices that have it in common."""

    def __init__(self, params: FlexiFedParams, setting: Setting) -> None:
        super().__init__(params.own, setting)
        self._strategy = params.strategy
        self._trained: dict[str, Tensors] = {}

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Take the device's change, and note that its layers count."""
        self.take(device, update)
        self._trained[device] = update.tensors
        return None

    def advance(self) -> dict[str, float]:
        """Average what is common among the devices that trained."""
        trained, self._trained = self._trained, {}
        layers = {device: layers_of(self.weights[device]) for device in trained}
        averaged = 0
        for names, devices in shared_layers(layers, self._strategy):
            if len(devices) < 2:
                continue
            averaged += len(names)
            own = [{name: self.weights[device][name] for name in names} for device in devices]
            moved = [
                {name: trained[device].get(name, np.zeros_like(kept[name])) for name in names}
                for device, kept in zip(devices, own, strict=True)
            ]
            mean = robust_mean(own, self.setting.combine, changes=moved)
            for device in devices:
                self.weights[device] = {**self.weights[device], **mean}
        return {"tensors_averaged": float(averaged)}

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._trained = {}


def layers_of(weights: Tensors) -> list[Layer]:
    """The layers of a model in the order in which its tensors are named."""
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, value in weights.items():
        layer, _, tensor = name.rpartition(".")
        found.setdefault(layer, []).append((tensor, value.shape))
    return [(layer, tuple(sorted(tensors))) for layer, tensors in found.items()]


def shared_layers(
    layers: dict[str, list[Layer]], strategy: Literal["basic", "clustered", "max"]
) -> list[tuple[list[str], list[str]]]:
    """(tensor names, devices) of every layer that is averaged, and among whom."""
    common = common_length(list(layers.values()))
    # Whoever has the same layers up to here (or, in a cluster, everywhere) shares this one.
    groups: dict[tuple[int, tuple[Layer, ...]], list[str]] = defaultdict(list)
    for device, own in sorted(layers.items()):
        for depth in range(1, len(own) + 1):
            if depth <= common or strategy == "max":
                groups[depth, tuple(own[:depth])].append(device)
            elif strategy == "clustered":
                groups[depth, tuple(own)].append(device)
    found = []
    for (depth, prefix), devices in groups.items():
        layer, tensors = prefix[depth - 1]
        found.append(([f"{layer}.{name}" if layer else name for name, _ in tensors], devices))
    return found


def common_length(models: list[list[Layer]]) -> int:
    """How many layers from the input on all models have in common."""
    length = 0
    for layers in zip(*models, strict=False):
        if len(set(layers)) > 1:
            break
        length += 1
    return length
