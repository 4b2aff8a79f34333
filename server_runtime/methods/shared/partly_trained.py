"""Any averaging method on a part of a model: what does not train travels once, packed where that is asked for.

The method inside knows the trained tensors alone and believes that they are the model.
"""

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Refusal, Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights
from fedwright.server_runtime.artifacts.packed import packed_specs
from fedwright.server_runtime.artifacts.trainable import moving_buffers, trained_names, with_adapters
from fedwright.server_runtime.blocks import lora
from fedwright.server_runtime.blocks.packing import is_packed, pack, unpack
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    Method,
    MethodState,
    Relay,
    Setting,
    SumRequest,
    SumResult,
    Tensors,
)
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure

# They average what devices learnt and look at nothing else of the model.
METHODS = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "scaffold", "standalone", "per-fedavg", "pfedme")


class PartlyTrained(Method):
    """A method whose devices train some tensors and hold the others as they came."""

    def __init__(self, make: Callable[[Setting], Method], setting: Setting) -> None:
        self._plain = setting.spec
        self._spec = with_adapters(setting.spec, setting.trainable)
        module = zoo.create(self._spec, seed=derive_seed(setting.seed, "adapters"))
        weights = initial_weights(module) | setting.initial
        self._trained = trained_names(module, setting.spec, setting.trainable)
        moving = {*self._trained, *moving_buffers(module, self._trained)}
        self._packing, self._manifest = setting.packing, setting.manifest
        frozen = {name: value for name, value in weights.items() if name not in moving}
        self._sent, self._frozen = _packed(frozen, setting)
        self._base = _digest(self._frozen)
        self._chosen: dict[Structure, Tensors] = {}
        own = {name: value for name, value in weights.items() if name in moving}
        manifest = None if setting.manifest is None else self._manifest_of(setting.manifest)
        self._inner = make(replace(setting, spec=self._spec, initial=own, manifest=manifest))

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """As the method inside says, of the part that trains."""
        return {
            device: replace(one, structure=self._partly(one.structure))
            for device, one in self._inner.assign(reports, round_number).items()
        }

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """What trains, made for this device, and the frozen part, the same for all."""
        return replace(self._inner.emit(device, assignment), frozen=self._frozen_for(assignment.structure))

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """As the method inside does."""
        return self._inner.absorb(device, update)

    def advance(self) -> dict[str, float]:
        """As the method inside does."""
        return self._inner.advance()

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The whole model; adapters are added to the matrices that they change."""
        _, weights = self._inner.model_of(device)
        return self._whole(weights)

    def start_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The same, before a device's next training."""
        _, weights = self._inner.start_of(device)
        return self._whole(weights)

    def state(self) -> MethodState:
        """What the method inside has, and which frozen part it belongs to."""
        return self._inner.state() | MethodState.of(frozen_sha256=self._base)

    def restore(self, state: MethodState) -> None:
        """Continue; ConfigError when the frozen part is another one by now."""
        if state.record("frozen_sha256", str) != self._base:
            raise ConfigError("the frozen part of the model is not the one that the run began with; give its weights")
        self._inner.restore(state)

    def meet(self, reports: Mapping[str, Report]) -> None:
        """As the method inside does."""
        self._inner.meet(reports)

    def planning_state(self) -> MethodState:
        """As the method inside has it."""
        return self._inner.planning_state()

    def restore_planning(self, state: MethodState) -> None:
        """As the method inside does."""
        self._inner.restore_planning(state)

    def wanted_facts(self) -> tuple[str, ...]:
        """What the method inside reads."""
        return self._inner.wanted_facts()

    def wanted_sum(self, reports: Mapping[str, Report]) -> SumRequest | None:
        """What the method inside asks for."""
        return self._inner.wanted_sum(reports)

    def take_sum(self, result: SumResult) -> None:
        """For the method inside."""
        self._inner.take_sum(result)

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """As the method inside says."""
        return self._inner.pools_by()

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """As the method inside does."""
        return self._inner.compared(device, update)

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """As the method inside does."""
        less = self._inner.shrink(device, assignment, refusal)
        return None if less is None else replace(less, structure=self._partly(less.structure))

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """As the method inside says."""
        return self._inner.personal_layers(device)

    def _partly(self, structure: Structure) -> Structure:
        return replace(structure, trainable=self._trained, packing=self._packing)

    def _manifest_of(self, make: Callable[[Structure], Manifest]) -> Callable[[Structure], Manifest]:
        return lambda structure: make(self._partly(structure))

    def _frozen_for(self, structure: Structure) -> Tensors:
        """Of the frozen part what the artifact reads, one and the same dictionary for all devices."""
        if self._manifest is None:
            return self._sent
        if structure not in self._chosen:
            wanted = {spec.name for spec in self._manifest(structure).frozen}
            self._chosen[structure] = {name: value for name, value in self._sent.items() if name in wanted}
        return self._chosen[structure]

    def _whole(self, weights: Tensors) -> tuple[ModelSpec, Tensors]:
        whole = {**self._frozen, **weights}
        return self._plain, whole if self._spec == self._plain else lora.merge(whole)


def partly_trained(name: str, make: Callable[[Setting], Method], setting: Setting) -> Method:
    """The method on the part that the setting names; ConfigError for one that is about the whole model."""
    if name not in METHODS:
        raise ConfigError(
            f"method {name} needs the whole model, but train.trainable is {setting.trainable!r}; choose one of "
            f"{', '.join(sorted(METHODS))}"
        )
    return PartlyTrained(make, setting)


def _packed(frozen: Tensors, setting: Setting) -> tuple[Tensors, Tensors]:
    """What is sent of the frozen part, and what devices compute with."""
    sent, used = dict(frozen), dict(frozen)
    for name, value in frozen.items():
        if setting.packing != "float32" and is_packed(value.shape):
            entries, scales = pack(sent.pop(name), setting.packing)
            first, second = packed_specs(name, value.shape, setting.packing)
            sent[first.name], sent[second.name] = entries, scales
            used[name] = unpack(entries, scales, value.shape)
    return sent, used


def _digest(tensors: Tensors) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
