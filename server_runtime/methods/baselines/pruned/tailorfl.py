"""TailorFL: every device trains the channels that matter most for its own data, as many as its resources allow.

Paper: Deng et al., TailorFL: Dual-Personalized Federated Learning under System and Data Heterogeneity (SenSys 2022),
known here by its abstract and by what FedConv's paper says of it.
Implemented: a size by the device's resources; channels by an importance that is learned on the device's data;
structures of devices with similar data drawn together; a device's change counts by its samples and by how much of the
model it trained; entries are averaged over the devices that hold them.
Left out: the learned importance layers of the original, which prune on the device.
Differs: a channel's importance is the length of its change in training, remembered from round to round; before anything
is known it is the size of its weights. Similar means: class counts at a small angle.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.channel_importance import (
    Scores,
    channel_norms,
    largest_plan,
    plan_from_marks,
    plan_to_marks,
)
from fedwright.server_runtime.blocks.slicing import Plan
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, MethodState, Relay, Setting, Tensors
from fedwright.server_runtime.methods.params.pruned import TailorFLParams
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod
from fedwright.server_runtime.spec import ModelSpec

IMPORTANCE = "importance/"


class TailorFL(LeveledMethod):
    """W_j ← W_j + Σ n_i r_i Δ_ij / Σ n_i r_i over the devices i that hold j, r_i the share of channels of device i."""

    def __init__(self, params: TailorFLParams, setting: Setting) -> None:
        self._params = params
        super().__init__(params.levels, setting)
        self._start = _scaled(channel_norms(setting.initial, self.axes))
        self._scores: dict[str, Scores] = {}
        self._counts: dict[str, list[int]] = {}

    def wanted_facts(self) -> tuple[str, ...]:
        """How many samples of each class there are: devices with like data prune alike."""
        return ("class_counts",)

    def note(self, reports: Mapping[str, Report]) -> None:
        """Remember what data each device has."""
        super().note(reports)
        self._counts |= {
            device: list(counts)
            for device, report in reports.items()
            if (counts := report.data.known_counts) is not None and any(counts)
        }

    def assignment(self, device: str, spec: ModelSpec, round_number: int) -> Assignment:
        """The most important channels at a size; the plan names them."""
        return replace(super().assignment(device, spec, round_number), marks=self._chosen_marks(device, spec))

    def _at(self, assignment: Assignment, spec: ModelSpec) -> Assignment:
        sizes, old = self._sizes_of(spec), self.plan_of("", assignment.structure.spec, assignment.marks)
        # Channels were in order of their number: the first of those that the device had.
        kept = {group: indices[: sizes[group]] for group, indices in old.items()}
        return replace(super()._at(assignment, spec), marks=plan_to_marks(kept))

    def _chosen_marks(self, device: str, spec: ModelSpec) -> tuple[int, ...]:
        return plan_to_marks(largest_plan(self.scores(device), self._sizes_of(spec)))

    def _sizes_of(self, spec: ModelSpec) -> dict[str, int]:
        """Of the groups that have channels to choose from; depths and ranks have none."""
        return {group: size for group, size in zoo.sizes_of(spec).items() if group in self._start}

    def scores(self, device: str) -> Scores:
        """A device's own importances, and those of devices with similar data."""
        own, share = self._scores.get(device, self._start), self._params.alike
        others = {other: self._alike(device, other) for other in sorted(self._scores) if other != device}
        total = sum(others.values())
        if not total or not share:
            return own
        return {
            group: (1 - share) * value
            + share * sum(weight * self._scores[other][group] for other, weight in others.items()) / total
            for group, value in own.items()
        }

    def _alike(self, one: str, other: str) -> float:
        """The cosine of two devices' class counts; 1 where one does not tell."""
        if one not in self._counts or other not in self._counts:
            return 1.0
        length = max(len(self._counts[one]), len(self._counts[other]))
        a, b = (np.resize([*self._counts[d], *[0] * length], length).astype(float) for d in (one, other))
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    def plan_of(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """The channels that the plan names."""
        return plan_from_marks(marks, self._sizes_of(spec))

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Fold the change in by samples and size, and learn what mattered."""
        spec, marks = update.assignment.structure.spec, update.assignment.marks
        plan = self._same_plan(device, spec, marks)
        weight = update.weight * update.stats.samples * zoo.width_of(spec)
        self._change.add(self.trained(update), plan, weight)
        self._learn(device, update.tensors, plan)
        return None

    def _learn(self, device: str, change: Tensors, plan: Plan) -> None:
        if not any(value.any() for value in change.values()):
            return
        moved = _scaled(channel_norms(change, {name: self.axes[name] for name in change}))
        memory = self._params.memory
        known = {group: value.copy() for group, value in self._scores.get(device, self._start).items()}
        for group, value in moved.items():
            at = plan.get(group, np.arange(len(value)))
            known[group][at] = memory * known[group][at] + (1 - memory) * value
        self._scores[device] = known

    def pools_by(self) -> None:
        """Every device's own change says what matters to it."""

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's most important channels; the whole model for no device in particular."""
        if not device:
            return self.setting.spec, self.weights
        spec = self.spec_of(device)
        return spec, self.submodel(device, spec, self._chosen_marks(device, spec))

    def planning_state(self) -> MethodState:
        """The size of each device and what data it has."""
        return super().planning_state() | MethodState.of(class_counts=self._counts)

    def restore_planning(self, state: MethodState) -> None:
        """Know again what a plan was made with."""
        super().restore_planning(state)
        self._counts = state.record("class_counts", dict[str, list[int]])

    def state(self) -> MethodState:
        """Also what matters to each device."""
        scores = {f"{IMPORTANCE}{d}/{g}": value for d, own in self._scores.items() for g, value in own.items()}
        return super().state() | MethodState.of(scores, class_counts=self._counts)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._counts, self._scores = state.record("class_counts", dict[str, list[int]]), {}
        for key, value in state.below(IMPORTANCE).items():
            device, _, group = key.partition("/")
            self._scores.setdefault(device, {})[group] = value


def _scaled(scores: Scores) -> Scores:
    """Each group's scores as shares of its largest."""
    return {group: value / max(float(value.max()), 1e-12) for group, value in scores.items()}
