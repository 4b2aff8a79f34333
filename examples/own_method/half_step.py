"""FedAvg that applies a share of the mean change: a method of one's own, outside the package."""

from dataclasses import dataclass, field

import numpy as np

from fedwright.server_runtime.methods.base import Assignment, Emission, Method, MethodState
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.spec import Structure


@dataclass(frozen=True)
class HalfStepParams:
    """share: how much of the mean change is applied."""

    share: float = field(default=0.5, metadata={"help": "how much of the mean change is applied"})


class HalfStep(Method):
    """W ← W + share · mean of the devices' changes."""

    params = HalfStepParams
    summary = "FedAvg that applies a share of the mean change"

    def __init__(self, params, setting):
        self._params, self._setting = params, setting
        self._weights = dict(setting.initial)
        self._structure = Structure(setting.spec, optimizer=setting.optimizer)
        self._changes = []

    def assign(self, reports, round_number):
        """Everyone that trains gets the whole model."""
        training = [device for device, report in reports.items() if report.trains]
        return {
            device: Assignment(self._structure, recipe_for(self._setting, round_number, device), self._setting.returns)
            for device in training
        }

    def emit(self, device, assignment):
        """The global weights."""
        return Emission(self._weights)

    def absorb(self, device, update):
        """Keep the change."""
        self._changes.append(update.tensors)

    def advance(self):
        """Apply a share of the mean."""
        for name, value in self._weights.items():
            if self._changes:
                mean = np.mean([change[name] for change in self._changes], axis=0)
                self._weights[name] = (value + self._params.share * mean).astype(value.dtype)
        self._changes = []
        return {}

    def model_of(self, device):
        """The global model for everyone."""
        return self._setting.spec, self._weights

    def state(self):
        """The global weights."""
        return MethodState(dict(self._weights))

    def restore(self, state):
        """Continue from saved weights."""
        self._weights = {name: state.tensors[name] for name in self._weights}
        self._changes = []
