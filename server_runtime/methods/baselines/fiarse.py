"""FIARSE: a device trains the largest entries of the model, as many as it can hold, and learns how large they are.

Paper: Wu et al., FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction
(NeurIPS 2024).
Implemented: the global threshold θ of each size (TopK of |W| over convolution and linear tensors); the mask gradient
1 + 2θ|w| / (|w| + θ)² on kept entries, with |w| ≥ θ looked at again in every step; each entry averaged over the devices
whose change of it is not zero.
Left out: the layer-wise variant; static batch normalisation.
Differs: devices get a dense model whose dropped entries are zero, so a smaller size saves traffic but no memory; only
kept entries travel. A device gets the largest of the sizes up to its own whose traffic fits its budget.
"""

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
from msgspec import structs

from fedwright.protocol.messages import Report
from fedwright.server_runtime.blocks.robust_mean import robust_mean
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.params.submodels import FiarseParams
from fedwright.server_runtime.methods.shared.budget_fit import largest_fitting
from fedwright.server_runtime.methods.shared.submodels import SizedMethod, norm_names
from fedwright.server_runtime.seeds import number_of
from fedwright.server_runtime.spec import ModelSpec, Objective


class Fiarse(SizedMethod):
    """W_j ← W_j + Σ_i Δ_ij / |{i : Δ_ij ≠ 0}|."""

    def __init__(self, params: FiarseParams, setting: Setting) -> None:
        super().__init__(setting)
        self._params = params
        norms = norm_names(setting.spec)
        self._masked = [name for name in self.weights if name not in norms]
        self._total: Tensors = {}
        self._count: Tensors = {}
        self._thresholds: dict[float, np.float32] = {}
        self._begin()

    def spec_of(self, device: str) -> ModelSpec:
        """The whole model; what is left out is zero."""
        return self.setting.spec

    def objective_of(self, spec: ModelSpec, round_number: int) -> Objective:
        """Cross-entropy through the mask."""
        return Objective(fiarse=True)

    def marks_of(self, device: str, round_number: int) -> tuple[int, ...]:
        """Which of the sizes the device has."""
        return (self._chosen.of(device, self._wished(device)),)

    def _wished(self, device: str) -> int:
        return number_of(device, self.setting.seed) % len(self._params.sizes)

    def fitting(self, device: str, report: Report, round_number: int) -> Assignment | None:
        """The device's own size, or the largest below it whose traffic fits."""
        sizes, whole = self._params.sizes, self.assignment(device, self.setting.spec, round_number)
        order = sorted(range(len(sizes)), key=sizes.__getitem__)

        def make(level: int) -> Assignment:
            return replace(whole, marks=(level,), returns=structs.replace(whole.returns, masked=sizes[level] < 1))

        fit = largest_fitting(
            self.setting,
            device,
            report=report,
            sizes=[level for level in order if sizes[level] <= sizes[self._wished(device)]],
            make=make,
            sent_ratio=sizes.__getitem__,
        )
        self._chosen.note(device, order[0] if fit is None else fit.size, own=self._wished(device))
        return None if fit is None else fit.assignment

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The weights of which the large entries travel."""
        weights = self.submodel(device, assignment.structure.spec, assignment.marks)
        theta = self._threshold(assignment.marks[0])
        masks = {name: np.abs(self.weights[name]) >= theta for name in self._masked} if theta else {}
        return Emission(weights, self.sides_of(device, assignment), masks=masks)

    def sides_of(self, device: str, assignment: Assignment) -> Tensors:
        """θ of the device's size."""
        return {"threshold": np.array(self._threshold(assignment.marks[0]), np.float32)}

    def submodel(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Tensors:
        """The weights with entries below θ set to zero."""
        key = (spec, marks)
        if key not in self._sent:
            theta = self._threshold(marks[0])
            self._sent[key] = {
                name: np.where(np.abs(value) >= theta, value, 0).astype(value.dtype) if name in self._masked else value
                for name, value in self.weights.items()
            }
        return self._sent[key]

    def _threshold(self, level: int) -> np.float32:
        size = self._params.sizes[level]
        if size not in self._thresholds:
            entries = np.concatenate([np.abs(self.weights[name]).reshape(-1) for name in self._masked])
            kept = max(1, round(size * len(entries)))
            self._thresholds[size] = np.float32(0) if size == 1 else np.partition(entries, -kept)[-kept]
        return self._thresholds[size]

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Add the change, and count where it is not zero."""
        if self.setting.combine.by_entry:
            self._rows.append(self.compared(device, update)[1])
            return None
        for name, change in update.tensors.items():
            self._total[name] += np.float32(update.weight) * change
            self._count[name] += np.float32(update.weight) * (change != 0)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors]:
        """The whole change, of which entries that the device did not have are zero."""
        return "", {name: np.where(change != 0, change, np.nan) for name, change in update.tensors.items()}

    def pools_by(self) -> None:
        """Each change counts where it is not zero, which its mean with others no longer tells."""

    def advance(self) -> dict[str, float]:
        """Follow the mean of the changes that were made."""
        rate = np.float32(self._params.server_rate)
        if self._rows:
            self._total = robust_mean(self._rows, self.setting.combine, changes=self._rows)
        self.weights = {
            name: value + rate * self._total[name] / np.where(self._count[name] > 0, self._count[name], 1)
            for name, value in self.weights.items()
        }
        self.advanced += 1
        self._begin()
        return {}

    def _begin(self) -> None:
        super()._begin()
        self._thresholds = {}
        self._rows: list[Tensors] = []
        self._total = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self._count = {name: np.zeros_like(value) for name, value in self.weights.items()}
