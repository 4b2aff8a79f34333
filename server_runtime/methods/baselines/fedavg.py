"""FedAvg: every device trains the whole model; the server averages what they learnt, weighted by their samples.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (2017).
Implemented: Algorithm 1, with E local epochs; running statistics are averaged like weights.
Left out: nothing.
Differs: devices send the change of their weights instead of the weights; the average is the same.
"""

from collections.abc import Hashable, Mapping
from typing import Literal

import numpy as np

from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights
from fedwright.server_runtime.blocks.robust import Mean, make_mean
from fedwright.server_runtime.blocks.slicing import Plan
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
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.methods.shared.budget_fit import LeftOut, fit_batches
from fedwright.server_runtime.methods.shared.recipes import pooled_by, recipe_for
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure

# Every device trains the whole model: one plan, so that a mean knows it again.
WHOLE: Plan = {}


class FedAvg(Method):
    """W ← W + Σ n_i Δ_i / Σ n_i over the devices i that answered with n_i samples."""

    # Whether an update counts by the device's samples, or every device the same.
    by_samples = True

    def __init__(self, params: FedAvgParams, setting: Setting) -> None:
        self._setting = setting
        spec = zoo.scaled(setting.spec, params.width) if params.width < 1 else setting.spec
        self._weights: Tensors = dict(setting.initial)
        if spec != setting.spec:
            self._weights = initial_weights(zoo.create(spec, seed=derive_seed(setting.seed, "initial weights")))
        self._structure = Structure(spec, optimizer=setting.optimizer)
        self._axes = {name: (None,) * value.ndim for name, value in self._weights.items()}
        self._left = LeftOut()
        self._change = self._new_mean()
        self._heard = False

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone whose budget allows it trains the same structure; the data order differs, and perhaps the batch."""
        whole = {device: self._assignment(device, round_number) for device in reports if reports[device].trains}
        return fit_batches(self._setting, whole, reports=reports, left=self._left)

    def _assignment(self, device: str, round_number: int) -> Assignment:
        recipe = recipe_for(self._setting, round_number, device)
        return Assignment(self._structure, recipe, self._setting.returns)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The global weights."""
        return Emission(self._weights)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Fold Δ_i into the mean with weight n_i."""
        weight = update.weight * (update.stats.samples if self.by_samples else 1)
        self._change.add(self.counted(update), WHOLE, weight)
        self._heard = True
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The whole change, beside all others'."""
        return "", self.counted(update)

    def counted(self, update: CheckedUpdate) -> Tensors:
        """The part of a change that counts: by default all."""
        return update.tensors

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """By what updates count."""
        return pooled_by(self._setting, by_samples=self.by_samples)

    def advance(self) -> dict[str, float]:
        """Apply the mean change."""
        change = self.server_step(self._change.result()) if self._heard else {}
        self._weights = self._weights | {
            name: (self._weights[name] + step).astype(self._weights[name].dtype) for name, step in change.items()
        }
        self._change, self._heard = self._new_mean(), False
        return {}

    def server_step(self, change: Tensors) -> Tensors:
        """What the server adds to its weights: by default the mean change."""
        return change

    def _new_mean(self) -> Mean:
        nothing = {name: np.zeros_like(value) for name, value in self._weights.items()}
        return make_mean(self._setting.combine, nothing, self._axes)

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The global model."""
        return self._structure.spec, self._weights

    def state(self) -> MethodState:
        """The global weights; between rounds nothing else is held."""
        return MethodState(dict(self._weights))

    def restore(self, state: MethodState) -> None:
        """Continue from saved weights."""
        self._weights = {name: state.tensors[name] for name in self._weights}
        self._change, self._heard = self._new_mean(), False
