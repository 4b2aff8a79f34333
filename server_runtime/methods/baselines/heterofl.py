"""HeteroFL: devices train the first channels of every layer, as many as their level allows.

Paper: Diao, Ding, Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients (ICLR 2021).
Implemented: nested widths with ceil; masked cross-entropy over the classes that a device holds; only the classifier
rows of those classes are averaged; every device counts the same; the scaler (hidden activations divided by the width
while training).
Left out: rates that are drawn anew each round ("dynamic").
Differs: static batch normalisation is not needed by the zoo's norm-free and group-normalised models; with batch
normalisation, running statistics are averaged like weights. The scaler stands behind convolutions and linear layers
that no normalisation follows, where it would have no effect. Tasks without single classes have no masks of classes.
"""

from collections.abc import Mapping

import numpy as np

from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.blocks.slicing import Axis, Plan
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Setting, Tensors
from fedwright.server_runtime.methods.params.submodels import HeteroFLParams
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod
from fedwright.server_runtime.spec import ModelSpec, Objective

# The rows of the classifier as a channel group of their own, so that a plan can name the classes a device holds.
CLASSES = "classes of the device"


class HeteroFL(LeveledMethod):
    """W_j ← W_j + mean of Δ_ij over the devices i that hold entry j."""

    rounding = "ceil"
    by_samples = False

    def __init__(self, params: HeteroFLParams, setting: Setting) -> None:
        self._params = params
        self._masked = params.masked and setting.spec.goal == CLASSIFY
        self._owned: dict[str, tuple[int, ...]] = {}
        super().__init__(params.levels, setting)
        self._classifier = classifier_names(setting.spec, self.weights)
        if self._masked:
            rows = {name: (Axis(CLASSES), *self.axes[name][1:]) for name in self._classifier}
            self.axes = {**self.axes, **rows}
            self._begin()

    def note(self, reports: Mapping[str, Report]) -> None:
        """Remember which classes each device holds; one that does not say holds all."""
        super().note(reports)
        for device, report in reports.items():
            counts = report.data.class_counts
            if counts is not None and any(counts):
                self._owned[device] = tuple(label for label, count in enumerate(counts) if count)

    def marks_of(self, device: str, round_number: int) -> tuple[int, ...]:
        """The classes of the device."""
        return self._owned.get(device, tuple(range(self.setting.spec.classes))) if self._masked else ()

    def objective_of(self, spec: ModelSpec, round_number: int) -> Objective:
        """Cross-entropy over own classes, with the scaler of this width."""
        width = zoo.width_of(spec)
        return Objective(masked_classes=self._masked, scaler=width if self._params.scaler and width < 1 else 0.0)

    def sides_of(self, device: str, assignment: Assignment) -> Tensors:
        """1 for the classes of the device."""
        if not self._masked:
            return {}
        mask = np.zeros(self.setting.spec.classes, np.float32)
        mask[list(assignment.marks)] = 1
        return {"class_mask": mask}

    def widest(self) -> ModelSpec:
        """The widest level: nobody trains the channels beyond it."""
        return max(self.specs, key=zoo.width_of)

    def submodel(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Tensors:
        """The tensors of a submodel, with the whole classifier."""
        return super().submodel(device, spec, ())

    def plan_of(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """The first channels; the classifier rows of the device's classes when an update comes back."""
        plan = super().plan_of(device, spec, marks)
        return {**plan, CLASSES: np.array(marks, np.int64)} if marks else plan

    def trained(self, update: CheckedUpdate) -> Tensors:
        """A change without the classifier rows of classes that the device lacks."""
        if not self._masked:
            return update.tensors
        rows = list(update.assignment.marks)
        own = {name: update.tensors[name][rows] for name in self._classifier}
        return {**update.tensors, **own}
