"""FRAMP: a model written for each device from a descriptor of its data, of which it gets the part that fits.

Paper: FRAMP (anonymous submission): personalised models by hypernetwork, magnitude masks and prototype alignment.
Implemented: descriptor at join, standardised over the fleet; generation for a round's devices at once; the γ d largest
entries over all tensors, or the strongest channels; prototype alignment in the device's graph; prototypes up and down
(noise or a rotation on arrival); new devices without training; union model H(mean v); every ablation of Table 2: no
alignment (align = 0), no personalisation, layer-wise masks, a learnt projection, one-hot and updated descriptors.
Left out: nothing of the method.
Descriptors are compared anew as the fleet grows; known devices keep their models then.
Differs: the printed sign of the hypernetwork's step is ascent, this is descent. Head biases start at the target net's
initialisation. Directions of descriptors count alike (blocks/scaling.py): two or three would else outweigh all others.
An entry follows the mean over the devices that had it, as in FIARSE, not over all of the round. Every layer keeps a
part of its own share (`least`), because the smallest sizes would else cut a wide layer off. Biases and normalisation
are never masked. λ weighs the mean over classes of the RMS distance of batch-level class means. Prototypes are means
over the devices that hold a class, not over all. Updated descriptors follow the hypernetwork's gradient on the server
instead of a feature extractor trained on devices. FIARSE's mask gradient is an option. Tasks without
single classes have no prototypes. Large targets are written in
pieces by a shared head.
"""

import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np

from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS
from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.messages import Refusal, Report
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.blocks.hypernet import Hypernet, HypernetForm, HypernetStart, Step
from fedwright.server_runtime.blocks.prototypes import Prototypes, disturbed
from fedwright.server_runtime.blocks.slicing import put, take
from fedwright.server_runtime.engine.spread import spread
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
from fedwright.server_runtime.methods.framp.assignments import Offers, note_of
from fedwright.server_runtime.methods.framp.cutter import Cutter, emission_of
from fedwright.server_runtime.methods.framp.descriptors import Descriptors
from fedwright.server_runtime.methods.framp.masks import SubmodelMasks, with_masks
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.methods.shared import generated_models
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure

# Above this many weights they are written in pieces of CHUNK.
WHOLE, CHUNK = 500_000, 8192


class Framp(Method):
    """φ ← φ + β mean_n J_n' (M_n Δ_n), ω_n = H(v_n; φ)."""

    def __init__(self, params: FrampParams, setting: Setting) -> None:
        if setting.spec.goal != CLASSIFY:
            params = replace(params, align=0.0)
        self._params, self._setting = params, setting
        self._initial = generated_models.parameters_of(setting)
        self._parts = SubmodelMasks(params, setting, self._initial)
        self._descriptors, self._running = (
            Descriptors(params, setting),
            generated_models.RunningStatistics(setting, self._initial, self._parts.axes),
        )
        self._step = Step(params.server_rate)
        self._hypernet: Hypernet | None = None
        self._made: dict[str, Tensors] = {}
        self._advanced = 0
        width = self._embedding() if params.align else 0
        self._prototypes = Prototypes.empty(setting.spec.classes, width)
        terms = setting.spec.classes * math.sqrt(max(1, width)) if params.align_by == "mean" else 1.0
        self._objective = Objective(
            prototypes=params.align / terms,
            element_masks=self._parts.by_element,
            fiarse=params.mask_gradient and self._parts.by_element,
        )
        self._offers = Offers(params, setting, parts=self._parts, objective=self._objective)

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in the descriptors."""
        self._descriptors.meet(reports)

    def wanted_facts(self) -> tuple[str, ...]:
        """φ(D_i), unless models are written from something else."""
        return ("descriptor",) if self._params.describe in ("features", "updated") else ()

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Write all models of the round at once and choose each device's part."""
        self.meet(reports)
        devices = [device for device in sorted(reports) if reports[device].trains and device in self._descriptors]
        if not devices:
            return {}
        self._keep_up()
        rows = self._descriptors.rows(devices)
        hypernet = self._net(rows.shape[1])
        if round_number == 1:
            hypernet.check_step(self._descriptors.rows(self._descriptors.known), self._step)
        made = generated_models.written_for(self._setting, hypernet, rows, alike=bool(self._params.alike))
        self._made = dict(zip(devices, made, strict=True))
        found = {
            device: self._offers.fitting(
                device,
                self._made[device],
                row=row,
                report=reports[device],
                recipe=recipe_for(self._setting, round_number, device),
            )
            for device, row in zip(devices, rows, strict=True)
        }
        return {device: assignment for device, assignment in found.items() if assignment is not None}

    def _keep_up(self) -> None:
        """Compare descriptors with the fleet as it is, before the first round and when it has grown."""
        if self._advanced == 0:
            self._descriptors.compare()
        elif self._descriptors.outgrown:
            with self._same_models():
                self._descriptors.compare()

    @contextmanager
    def _same_models(self) -> Iterator[None]:
        """Whatever becomes of the scale of descriptors here, everyone who was compared keeps its model."""
        compared = self._descriptors.compared
        before = self._descriptors.rows(compared) if compared else None
        yield
        if self._hypernet is not None and before is not None:
            after = self._descriptors.rows(compared)
            if (before != after).any():
                self._hypernet.rewrite_inputs(before, after)

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """A smaller part that fits into what the device has free."""
        if device not in self._made:
            row = note_of(assignment).input
            self._made[device] = self._net(len(row)).generate(row[None])[0]
        return self._offers.smaller(self._made[device], assignment, refusal)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's part of its model, and the prototypes."""
        return self._cutter().emission((self._made[device], note_of(assignment)))

    def emit_all(self, assignments: Mapping[str, Assignment]) -> dict[str, Emission]:
        """Parts are chosen by magnitude, of each model by itself."""
        devices = sorted(assignments)
        items = [(self._made[device], note_of(assignments[device])) for device in devices]
        return dict(zip(devices, spread(self._setting.engine, emission_of, items, self._cutter()), strict=True))

    def _cutter(self) -> Cutter:
        sides = {}
        if self._params.align:
            sides = {"prototypes": self._prototypes.values, "prototype_owned": self._prototypes.known}
        return Cutter(self._parts, self._params.sizes, self._running.values, sides, fiarse=self._objective.fiarse)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Remember the change at its place in the full model, and take in its class means."""
        note, tensors = note_of(update.assignment), update.tensors
        # As descriptors are written now: a late update was planned when the fleet was smaller.
        known = device in self._descriptors and self._descriptors.scaling is not None
        row = self._descriptors.rows([device])[0] if known else note.input
        change = {name: tensors[name] for name in self._initial}
        if note.plan:
            nothing = {name: np.zeros_like(value) for name, value in self._initial.items()}
            change = put(nothing, change, self._parts.axes, note.channels)
        self._net(len(row)).add(row, change, update.weight)
        if self._params.describe == "updated":
            self._descriptors.pull(device, self._net(len(row)).input_gradient(row, change))
        # In a sum every device counts the same.
        samples = 1 if self._setting.sums else update.stats.samples
        self._running.add(tensors, samples * update.weight, note.channels)
        if CLASS_MEANS in tensors:
            rng = np.random.default_rng(derive_seed(self._setting.seed, "prototypes", self._advanced, device))
            shared = disturbed(tensors[CLASS_MEANS], self._params.disturb, scale=self._params.noise, rng=rng)
            self._prototypes.add(shared, tensors[CLASS_COUNTS])
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The change at its place in the full model, beside all others'."""
        note = note_of(update.assignment)
        change = {name: update.tensors[name] for name in self._initial}
        if note.plan:
            nothing = {name: np.full(value.shape, np.nan, np.float32) for name, value in self._initial.items()}
            change = put(nothing, change, self._parts.axes, note.channels)
        elif update.assignment.returns.masked:
            change = {name: np.where(value != 0, value, np.nan) for name, value in change.items()}
        return "", change

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Σ J' Δ_n = J' Σ Δ_n where J is of one descriptor; for sums only, in which devices share one."""
        return "devices" if self._setting.sums and self._params.alike else None

    def advance(self) -> dict[str, float]:
        """Step through the hypernetwork; refresh the prototypes."""
        norm = 0.0 if self._hypernet is None else self._hypernet.learn(self._step)
        moved = self._prototypes.advance() if self._params.align else 0.0
        self._running.advance()
        self._made = {}
        self._advanced += 1
        self._descriptors.advance(self._advanced)
        return {"hypernet_gradient": norm, "prototypes_moved": moved}

    def part(self, device: str) -> Tensors:
        """The model written for a device, zero where its part has nothing; a stranger's is of the mean descriptor."""
        known = device in self._descriptors and self._descriptors.scaling is not None
        rows = self._descriptors.rows([device]) if known else self._descriptors.union()
        weights = {**self._initial, **self._running.values}
        if rows is not None:
            weights |= self._net(rows.shape[1]).generate(rows)[0]
        return with_masks(weights, self._parts.masks(weights, self._share(device)))

    def _share(self, device: str) -> float:
        return self._parts.share(device) if device else 1.0

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The part of its model that fits the device, without dead channels; for no device, the whole union model."""
        weights, share = self.part(device), self._share(device)
        if share == 1:
            return self._setting.spec, weights
        plan = self._parts.live(weights) if self._parts.by_element else self._parts.channels(weights, share)
        return self._parts.spec(plan), take(weights, self._parts.axes, plan) if plan else weights

    def planning_state(self) -> MethodState:
        """What descriptors are compared with as the round is planned, and who has which size."""
        return self._parts.chosen.state() | self._descriptors.state()

    def restore_planning(self, state: MethodState) -> None:
        """Know again what a plan was made with."""
        self._parts.chosen.restore(state)
        if state.tensors:
            with self._same_models():
                self._descriptors.restore(state)

    def state(self) -> MethodState:
        """Hypernetwork, prototypes, descriptors, sizes, running statistics."""
        prototypes = {"prototypes": self._prototypes.values, "prototypes_known": self._prototypes.known}
        return (
            MethodState.of(prototypes, advanced=self._advanced)
            | self._descriptors.state()
            | self._running.state()
            | self._parts.chosen.state()
            | generated_models.hypernet_state(self._hypernet)
        )

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._descriptors.restore(state)
        self._running.restore(state)
        self._parts.chosen.restore(state)
        self._advanced = state.record("advanced", int)
        self._prototypes = Prototypes(state.tensors["prototypes"], state.tensors["prototypes_known"])
        self._made, self._hypernet = {}, None
        scaling = self._descriptors.scaling
        if scaling is not None:
            inputs = len(scaling.mean)
            generated_models.restore_hypernet(state, lambda: self._net(inputs))

    def _net(self, inputs: int) -> Hypernet:
        """The hypernetwork, made when the length of a descriptor is known."""
        if self._hypernet is None:
            params = self._params
            form = HypernetForm(
                inputs,
                params.hidden,
                norm=math.sqrt(params.own),
                chunk=CHUNK if sum(value.size for value in self._initial.values()) > WHOLE else None,
                shared=not params.personal,
                by_entry=True,
                project=params.project,
            )
            seed = derive_seed(self._setting.seed, "hypernetwork")
            self._hypernet = Hypernet(form, HypernetStart(self._initial, {}), seed=seed, device=self._setting.device)
        return self._hypernet

    def _embedding(self) -> int:
        structure = Structure(self._setting.spec)
        ask = self._setting.manifest or (lambda asked: Builder().build(asked).manifest)
        return ask(structure).embedding_size
