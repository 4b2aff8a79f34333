"""What methods share whose devices keep models of their own architecture."""

import logging
from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report, Returns
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    Method,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.params.personal_models import PersonalModelParams
from fedwright.server_runtime.methods.shared.budget_fit import LeftOut, fit_batches
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure

log = logging.getLogger(__name__)


class PersonalModels(Method):
    """w_m ← w_m + Δ_m: each device goes on with its own model, kept here for it; subclasses let them meet.

    Where the server sees sums only, own models stay on their devices, and here are those that they began with.
    """

    def __init__(self, own: PersonalModelParams, setting: Setting) -> None:
        self.setting = setting
        self._own = own
        self._warned: set[str] = set()
        self._left = LeftOut()
        self.specs: dict[str, ModelSpec] = {}
        self.weights: dict[str, Tensors] = {}
        self.reports: dict[str, Report] = {}
        for name in [*own.models, *own.devices.values()]:
            zoo.create(self.spec_of(name), seed=0)

    def spec_of(self, name: str) -> ModelSpec:
        """The model of that name for the run's data."""
        return zoo.named(name, self.setting.spec)

    def initial(self, spec: ModelSpec) -> Tensors:
        """Where every model of this architecture begins."""
        if spec == self.setting.spec:
            return dict(self.setting.initial)
        return initial_weights(zoo.create(spec, seed=derive_seed(self.setting.seed, "initial weights", spec.model)))

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Give a device that is new its model; the first word counts."""
        self.reports |= reports
        for device in sorted(reports):
            if device in self.specs or device in self._warned:
                continue
            try:
                name = self._own.name_of(
                    device, reports[device], default=self.setting.spec.model, seed=self.setting.seed
                )
                spec = self.spec_of(name)
                self.weights[device] = self.initial(spec)
                self.specs[device] = spec
            except ConfigError as err:
                self._warned.add(device)
                log.warning("device %s gets the common model and does not train: %s", device, err)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone trains its own model, in batches that its budget allows."""
        self.meet(reports)
        plans = {
            device: self.assignment(device, round_number)
            for device in sorted(reports)
            if device in self.specs and reports[device].trains
        }
        return fit_batches(self.setting, plans, reports=reports, left=self._left)

    def assignment(self, device: str, round_number: int) -> Assignment:
        """What a device does this round."""
        structure = Structure(self.specs[device], self.objective_of(device), self.setting.optimizer)
        return Assignment(structure, recipe_for(self.setting, round_number, device), self.returns_of(device))

    def returns_of(self, device: str) -> Returns:
        """What comes back of a training: the change, or nothing where own models stay with their devices."""
        plain = self.setting.returns
        kept = list(self.personal_layers(device))
        return structs.replace(plain, weights="none", personal=kept) if self.setting.sums else plain

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """All of its model where the server sees sums only."""
        return tuple(self.weights[device]) if self.setting.sums and device in self.weights else ()

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Logits and class means are averaged in sums, every device's the same; own models never are."""
        return "devices" if self.setting.sums else None

    def objective_of(self, device: str) -> Objective:
        """The device's loss."""
        return Objective()

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's own weights."""
        return Emission(self.weights[device])

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Take the device's change into its model."""
        self.take(device, update)
        return None

    def take(self, device: str, update: CheckedUpdate) -> None:
        """w_m ← w_m + weight · Δ_m."""
        if device not in self.specs:
            # The round was planned by another process, which alone had met the device.
            self.specs[device] = update.assignment.structure.spec
            self.weights[device] = self.initial(self.specs[device])
        before = self.weights[device]
        step = np.float32(update.weight)
        self.weights[device] = before | {
            name: (value + step * update.tensors[name]).astype(value.dtype)
            for name, value in before.items()
            if name in update.tensors
        }

    def advance(self) -> dict[str, float]:
        """Nothing is shared."""
        return {}

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's own model; for no device, the mean of the models that are of the run's architecture."""
        if device in self.specs:
            return self.specs[device], self.weights[device]
        alike = [self.weights[other] for other, spec in sorted(self.specs.items()) if spec == self.setting.spec]
        if not alike:
            return self.setting.spec, dict(self.setting.initial)
        return self.setting.spec, {name: np.mean([own[name] for own in alike], axis=0) for name in alike[0]}

    def state(self) -> MethodState:
        """Every device's model."""
        return models_state("models", {device: (spec, self.weights[device]) for device, spec in self.specs.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        found = restored_models("models", state)
        self.specs = {device: spec for device, (spec, _) in found.items()}
        self.weights = {device: weights for device, (_, weights) in found.items()}


def models_state(name: str, models: Mapping[str, tuple[ModelSpec, Tensors]]) -> MethodState:
    """A model of each of some devices as a part of a state, under a name of its own."""
    weights = {f"{name}/{device}/{key}": value for device, (_, own) in models.items() for key, value in own.items()}
    return MethodState.of(weights, **{name: {device: spec for device, (spec, _) in sorted(models.items())}})


def restored_models(name: str, state: MethodState) -> dict[str, tuple[ModelSpec, Tensors]]:
    """The models that `models_state` was given."""
    found: dict[str, tuple[ModelSpec, Tensors]] = {
        device: (spec, {}) for device, spec in state.record(name, dict[str, ModelSpec]).items()
    }
    for key, value in state.below(f"{name}/").items():
        device, _, tensor = key.partition("/")
        found[device][1][tensor] = value
    return found
