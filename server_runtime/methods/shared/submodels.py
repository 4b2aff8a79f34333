"""What methods share whose devices train submodels cut out of one global model.

A submodel is a spec with smaller channel groups and a plan {group: indices} that says which channels it has. Changes
are averaged entry by entry over the devices that trained it; other entries stay.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Refusal, Report
from fedwright.protocol.support.steps import counted
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights, norm_parameters
from fedwright.server_runtime.blocks.averaging import KEPT_PLANS, DilutedMean
from fedwright.server_runtime.blocks.budget import Budget, Cost, largest_choice
from fedwright.server_runtime.blocks.robust import Mean, make_mean
from fedwright.server_runtime.blocks.slicing import Axes, Plan, prefix_plan, put, take
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
from fedwright.server_runtime.methods.params.submodels import Levels
from fedwright.server_runtime.methods.shared.budget_fit import (
    ChosenSizes,
    LeftOut,
    fit_batch,
    largest_fitting,
    memory_of,
)
from fedwright.server_runtime.methods.shared.recipes import pooled_by, recipe_for
from fedwright.server_runtime.seeds import number_of
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure


class SubmodelMethod(Method):
    """The four hooks for submodels; a method says which spec a device gets and which channels that means."""

    rounding: Literal["floor", "ceil"] = "floor"
    # Whether an update counts by the device's samples, or every device the same.
    by_samples = True
    # HASA's protocol A: what a device did not train counts as unchanged instead of not at all.
    diluted = False

    def __init__(self, setting: Setting) -> None:
        if setting.spec.sizes:
            raise ConfigError(
                f"submodels are cut from the whole of {setting.spec.model}, but model.model gives it a width;"
                " leave out the part from '@' on"
            )
        self.setting = setting
        self.weights: Tensors = dict(setting.initial)
        self.axes: Axes = zoo.axes_of(setting.spec)
        self.full = zoo.full_sizes(setting.spec)
        self.advanced = 0
        self._sent: dict[tuple[ModelSpec, tuple[int, ...]], Tensors] = {}
        self._plans: dict[tuple[ModelSpec, tuple[int, ...]], Plan] = {}
        self._left = LeftOut()
        self._change = self._new_mean()

    @abstractmethod
    def spec_of(self, device: str) -> ModelSpec:
        """The submodel's sizes for a device that has reported."""

    def note(self, reports: Mapping[str, Report]) -> None:
        """Take in what the devices report, before specs are asked for; most methods need nothing of it."""
        del reports

    def plan_of(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """Which channels the submodel has: by default the first of every group."""
        return prefix_plan(self.full, zoo.sizes_of(spec))

    def marks_of(self, device: str, round_number: int) -> tuple[int, ...]:
        """What must be remembered of this round to find the plan again."""
        return ()

    def objective_of(self, spec: ModelSpec, round_number: int) -> Objective:
        """The training objective; cross-entropy unless the method adds terms."""
        return Objective()

    def sides_of(self, device: str, assignment: Assignment) -> Tensors:
        """Side inputs of the objective."""
        return {}

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone trains a submodel of its size; who has the budget for none is left out."""
        self.note(reports)
        found = {}
        # What fits is known from graphs, which are built here.
        for device, report in counted(sorted(reports.items()), "planning for devices"):
            fitting = self.fitting(device, report, round_number) if report.trains else None
            if fitting is not None:
                found[device] = fitting
                self._left.back(device)
            elif report.trains:
                self._left.out(device, setting=self.setting, report=report)
        return found

    def fitting(self, device: str, report: Report, round_number: int) -> Assignment | None:
        """A device's part of a round within its budget: by default only the batch gives way."""
        whole = self.assignment(device, self.spec_of(device), round_number)
        return fit_batch(self.setting, device, report=report, assignment=whole)

    def assignment(self, device: str, spec: ModelSpec, round_number: int) -> Assignment:
        """One device's part of a round at a size."""
        setting = self.setting
        recipe = recipe_for(setting, round_number, device)
        structure = Structure(spec, self.objective_of(spec, round_number), setting.optimizer)
        return Assignment(structure, recipe, setting.returns, self.marks_of(device, round_number))

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's part of the global weights; devices with the same part share one dictionary."""
        weights = self.submodel(device, assignment.structure.spec, assignment.marks)
        return Emission(weights, self.sides_of(device, assignment))

    def submodel(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Tensors:
        """The tensors of a submodel."""
        key = (spec, marks)
        if key not in self._sent:
            whole = {name: self.weights[name] for name in names_of(spec)}
            self._sent[key] = take(whole, self.axes, self.plan_of(device, spec, marks))
        return self._sent[key]

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Fold the change in where the device trained."""
        assignment = update.assignment
        plan = self._same_plan(device, assignment.structure.spec, assignment.marks)
        weight = update.weight * (update.stats.samples if self.by_samples else 1)
        self._change.add(self.trained(update), plan, weight)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The change at its place in the whole model, beside all others'."""
        assignment = update.assignment
        plan = self._same_plan(device, assignment.structure.spec, assignment.marks)
        nothing = {name: np.full(value.shape, np.nan, np.float32) for name, value in self.weights.items()}
        return "", put(nothing, self.trained(update), self.axes, plan)

    def _same_plan(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """`plan_of`, the same object for the same part: a mean keeps what it made for a plan."""
        key = (spec, marks)
        if key not in self._plans:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            self._plans[key] = self.plan_of(device, spec, marks)
        return self._plans[key]

    def trained(self, update: CheckedUpdate) -> Tensors:
        """The part of a change that counts: by default all."""
        return update.tensors

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """By what updates count."""
        return pooled_by(self.setting, by_samples=self.by_samples)

    def advance(self) -> dict[str, float]:
        """Apply the mean change."""
        change = self._change.result()
        self.weights = {name: (value + change[name]).astype(value.dtype) for name, value in self.weights.items()}
        self.advanced += 1
        self._begin()
        return {}

    def _begin(self) -> None:
        self._sent.clear()
        self._change = self._new_mean()

    def _new_mean(self) -> Mean | DilutedMean:
        nothing = {name: np.zeros_like(value) for name, value in self.weights.items()}
        combine = self.setting.combine
        # A private mean dilutes, too: it divides every entry by the same number.
        diluted = self.diluted and combine.central is None
        return DilutedMean(nothing, self.axes) if diluted else make_mean(combine, nothing, self.axes)

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's submodel as of the last round; the widest trained one for no device in particular."""
        if not device and self.widest() == self.setting.spec:
            return self.setting.spec, self.weights
        spec = self.spec_of(device) if device else self.widest()
        return spec, self.submodel(device, spec, self.marks_of(device, max(1, self.advanced)))

    def widest(self) -> ModelSpec:
        """The largest submodel all of which is trained."""
        return self.setting.spec

    def state(self) -> MethodState:
        """The global weights and how often they advanced."""
        return MethodState.of(self.weights, advanced=self.advanced)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self.advanced = state.record("advanced", int)
        self.weights = {name: state.tensors[name] for name in self.setting.initial}
        self._begin()


class SizedMethod(SubmodelMethod):
    """Submodels in a few sizes; which one a device was last given is part of the state."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._chosen = ChosenSizes()

    def planning_state(self) -> MethodState:
        """The size of each device."""
        return self._chosen.state()

    def restore_planning(self, state: MethodState) -> None:
        """Know the sizes again that a plan was made with."""
        self._chosen.restore(state)

    def state(self) -> MethodState:
        """Also the size of each device."""
        return super().state() | self._chosen.state()

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._chosen.restore(state)


class LeveledMethod(SizedMethod):
    """Submodels in a few sizes."""

    def __init__(self, levels: Levels, setting: Setting) -> None:
        super().__init__(setting)
        self.levels = levels
        self.specs = self.make_specs()
        self._sizes = [count_params(spec) for spec in self.specs]

    def make_specs(self) -> list[ModelSpec]:
        """The spec of every level, in the order of the levels."""
        return [self._scaled(size) for size in self.levels.sizes]

    def _scaled(self, size: float) -> ModelSpec:
        return zoo.scaled(self.setting.spec, self.level_width(size), rounding=self.rounding)

    def level_width(self, size: float) -> float:
        """The share of the channels that a level's size means."""
        if self.levels.by == "width":
            return size
        return width_for_params(self.setting.spec, size, rounding=self.rounding)

    def wished(self, device: str) -> int:
        """The level of a device that can do anything."""
        if self.levels.choose == "budget":
            return max(range(len(self._sizes)), key=self._sizes.__getitem__)
        return self._own_level(device)

    def _own_level(self, device: str) -> int:
        return number_of(device, self.setting.seed) % len(self.specs)

    def level_of(self, device: str) -> int:
        """Which level a device has: what it was last given; before that, what it would get by its id."""
        return self._chosen.of(device, self._own_level(device))

    def fitting(self, device: str, report: Report, round_number: int) -> Assignment | None:
        """The wished level, or the largest below it within the device's budget."""
        order = sorted(range(len(self._sizes)), key=self._sizes.__getitem__)
        fit = largest_fitting(
            self.setting,
            device,
            report=report,
            sizes=[level for level in order if self._sizes[level] <= self._sizes[self.wished(device)]],
            make=lambda level: self.assignment(device, self.specs[level], round_number),
        )
        self._chosen.note(device, order[0] if fit is None else fit.size, own=self._own_level(device))
        return None if fit is None else fit.assignment

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """The next smaller level that fits into what the device has free, or the smallest; None below that."""
        sizes = dict(zip(self.specs, self._sizes, strict=True))
        order = sorted((s for s in sizes if sizes[s] < sizes.get(assignment.structure.spec, 0)), key=sizes.__getitem__)
        offers = [self._at(assignment, spec) for spec in order]
        if not offers:
            return None
        room = Budget(memory_bytes=refusal.free_bytes)
        found = largest_choice(offers, lambda offer: Cost(memory_of(self.setting, offer)), room)
        return found or offers[0]

    def _at(self, assignment: Assignment, spec: ModelSpec) -> Assignment:
        objective = self.objective_of(spec, self.advanced + 1)
        return replace(assignment, structure=replace(assignment.structure, spec=spec, objective=objective))

    def spec_of(self, device: str) -> ModelSpec:
        """The submodel of the device's level."""
        return self.specs[self.level_of(device)]


@lru_cache(maxsize=256)
def names_of(spec: ModelSpec) -> tuple[str, ...]:
    """The tensors of a model at its sizes; a shallower one lacks some."""
    return tuple(initial_weights(zoo.create(spec, seed=0)))


def norm_names(spec: ModelSpec) -> frozenset[str]:
    """The parameters of a model's normalisation layers."""
    return norm_parameters(zoo.create(spec, seed=0))


@lru_cache(maxsize=256)
def count_params(spec: ModelSpec) -> int:
    """Parameters of a model at its sizes."""
    return sum(value.numel() for value in zoo.create(spec, seed=0).parameters())


def width_for_params(spec: ModelSpec, share: float, *, rounding: Literal["floor", "ceil"] = "floor") -> float:
    """The largest width whose submodel has at most this share of the parameters."""
    if share == 1:
        return 1.0
    limit = share * count_params(spec)
    steps = max(zoo.full_sizes(spec).values(), default=1)
    low, high = 0, steps
    while high - low > 1:
        middle = (low + high) // 2
        fits = count_params(zoo.scaled(spec, middle / steps, rounding=rounding)) <= limit
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        raise ConfigError(
            f"no width of {spec.model} has at most {share:g} of its parameters; give a larger size or a larger model"
        )
    return low / steps
