"""What methods share whose devices keep models of their own architecture."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.embedded_sets import STARTER_PUBLIC
from fedwright.server_runtime.methods.base import Absorbed, Array, Assignment, Emission, Relay, Setting, Tensors
from fedwright.server_runtime.methods.shared.budget_fit import Left, fit_batches
from fedwright.server_runtime.methods.shared.generated_models import recipe_for
from fedwright.server_runtime.methods.shared.submodels import number_of
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure

log = logging.getLogger(__name__)

MODEL, WEIGHTS = "model/", "weights/"
# What starter configs deal out: two convolutional nets of different kind and one without convolutions.
UNLIKE: dict[str, Any] = {"own": {"models": ("cnn-small", "cnn-gn", "mlp")}}
# Each teacher is a graph of its own, which takes its time to build.
TAUGHT_START: dict[str, dict[str, Any]] = {"run": {"rounds": 4}, "method": UNLIKE, "public": STARTER_PUBLIC}


@dataclass(frozen=True)
class Own:
    """Who has which model: `devices` by id, else what the device reports, else `models` in turn, else the run's."""

    models: tuple[str, ...] = field(
        default=(), metadata={"help": "dealt out by the number in an id; such as cnn1 or mobilenet-v2@0.25 (its width)"}
    )
    devices: dict[str, str] = field(default_factory=dict, metadata={"help": "the model of a device by its id"})

    def name_of(self, device: str, report: Report, *, default: str, seed: int) -> str:
        """The name of a device's model; code of its own only when the server was told of it."""
        if device in self.devices:
            return self.devices[device]
        if report.model:
            if report.model.startswith("python:") and report.model not in self.models:
                raise ConfigError(f"it names {report.model}, which is not among the run's own.models; add it there")
            return report.model
        return self.models[number_of(device, seed) % len(self.models)] if self.models else default


class OwnModels:
    """w_m ← w_m + Δ_m: each device goes on with its own model, kept here for it; subclasses let them meet."""

    def __init__(self, own: Own, setting: Setting) -> None:
        self.setting = setting
        self._own = own
        self._warned: set[str] = set()
        self._left = Left()
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
        return Assignment(structure, recipe_for(self.setting, round_number, device), self.setting.returns)

    def objective_of(self, device: str) -> Objective:
        """The device's loss."""
        return Objective()

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's own weights."""
        return Emission(self.weights[device])

    def absorb(self, device: str, reply: Absorbed) -> Relay | None:
        """Take the device's change into its model."""
        self.take(device, reply)
        return None

    def take(self, device: str, reply: Absorbed) -> None:
        """w_m ← w_m + weight · Δ_m."""
        if device not in self.specs:
            # The round was planned by another process, which alone had met the device.
            self.specs[device] = reply.assignment.structure.spec
            self.weights[device] = self.initial(self.specs[device])
        before = self.weights[device]
        step = np.float32(reply.weight)
        self.weights[device] = before | {
            name: (value + step * reply.tensors[name]).astype(value.dtype)
            for name, value in before.items()
            if name in reply.tensors
        }

    def advance(self) -> dict[str, float]:
        """Nothing is shared."""
        return {}

    def personal(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's own model; for no device, the mean of the models that are of the run's architecture."""
        if device in self.specs:
            return self.specs[device], self.weights[device]
        alike = [self.weights[other] for other, spec in sorted(self.specs.items()) if spec == self.setting.spec]
        if not alike:
            return self.setting.spec, dict(self.setting.initial)
        return self.setting.spec, {name: np.mean([own[name] for own in alike], axis=0) for name in alike[0]}

    def state(self) -> Tensors:
        """Every device's model."""
        state: Tensors = {}
        for device, spec in sorted(self.specs.items()):
            state[MODEL + device] = pack(spec)
            state |= {f"{WEIGHTS}{device}/{name}": value for name, value in self.weights[device].items()}
        return state

    def restore(self, state: Tensors) -> None:
        """Continue from a saved state."""
        found = {key.removeprefix(MODEL): value for key, value in state.items() if key.startswith(MODEL)}
        self.specs = {device: unpack(value) for device, value in found.items()}
        self.weights = {device: {} for device in found}
        for key, value in state.items():
            if key.startswith(WEIGHTS):
                device, _, name = key.removeprefix(WEIGHTS).partition("/")
                self.weights[device][name] = value


def pack(spec: ModelSpec) -> Array:
    """A spec among tensors."""
    return np.frombuffer(msgspec.json.encode(spec), np.uint8).copy()


def unpack(value: Array) -> ModelSpec:
    """The spec that `pack` was given."""
    return msgspec.json.decode(np.asarray(value, np.uint8).tobytes(), type=ModelSpec)
