"""pFedHN: a hypernetwork writes every device's whole model and learns from what the devices make of it.

Paper: Shamsian et al., Personalized Federated Learning using Hypernetworks (ICML 2021); with class indicators as the
baseline of HyperFLoRA (SDM 2024).
Implemented: trunk with one linear head per tensor; the vector-Jacobian product with (initial − final); learnt embedding
per device, or the indicator of the classes that a device holds, which also serves devices that never train; the
parallel form that averages over the devices of a round; groups of devices that share a description (`alike`), whose
changes may be summed before anybody sees them.
Left out: personal classifiers that stay on the device (pFedHN-PC); momentum of the embeddings.
Differs: heads start at the initialisation of the target net instead of at random, and without weight decay; a trunk
that reads classes keeps the size of what it reads, as HyperFLoRA's here. Where numbers are predicted, classes say
nothing, and every device has an embedding. Without `parallel`, the devices of one round all start from the same
hypernetwork, which then follows one after the other; with fleet.per_round = 1 that is the paper's loop. Running
statistics are averaged as in FedAvg.
"""

from collections.abc import Hashable, Mapping
from typing import Literal

import numpy as np

from fedwright.protocol.messages import Report
from fedwright.server_runtime.blocks.hypernet import Hypernet, HypernetForm, HypernetStart
from fedwright.server_runtime.methods.base import (
    Array,
    Assignment,
    CheckedUpdate,
    Emission,
    Method,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.goal_check import NUMBERS
from fedwright.server_runtime.methods.params.generated_models import PFedHNParams
from fedwright.server_runtime.methods.shared.budget_fit import LeftOut, fit_batches
from fedwright.server_runtime.methods.shared.generated_models import (
    Descriptions,
    RunningStatistics,
    as_union,
    bits,
    floats,
    hypernet_state,
    indicator_of,
    parameters_of,
    restore_hypernet,
    unit,
    written_for,
)
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure


class PFedHN(Method):
    """φ ← φ − β J' (ω_i − ω_i'), for each device i in turn or as a mean."""

    def __init__(self, params: PFedHNParams, setting: Setting) -> None:
        self._params = params
        self._setting = setting
        self._structure = Structure(setting.spec, optimizer=setting.optimizer)
        generated = parameters_of(setting)
        # Of numbers to predict a device holds no classes that would tell it from others.
        self._named = named = params.describe == "classes" and setting.spec.goal not in NUMBERS
        inputs = setting.spec.classes if named else params.embedding
        form = HypernetForm(inputs, params.hidden, params.layers, keep_scale=named, sequential=not params.parallel)
        seed = derive_seed(setting.seed, "hypernetwork")
        self._hypernet = Hypernet(form, HypernetStart(generated, {}), seed=seed, device=setting.device)
        self._running = RunningStatistics(setting, generated)
        self._known = Descriptions(params.alike, as_union)
        self._left = LeftOut()
        self._made: dict[str, Tensors] = {}

    @property
    def hypernet(self) -> Hypernet:
        """The network that writes the models."""
        return self._hypernet

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in what every device says of its classes."""
        self._known.meet(reports, lambda device: self._described(device, reports[device]))

    def _described(self, device: str, report: Report) -> Array:
        if self._named:
            return unit(indicator_of(report, self._setting.spec.classes))
        rng = np.random.default_rng(derive_seed(self._setting.seed, "embedding", device))
        return rng.standard_normal(self._params.embedding, dtype=np.float32)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone whose budget allows it trains the whole model; all models of the round are written at once."""
        self.meet(reports)
        devices = [device for device in sorted(reports) if reports[device].trains and device in self._known.rows]
        if not devices:
            return {}
        rows = np.stack([self._known.rows[device] for device in devices])
        if round_number == 1:
            self._hypernet.check_step(rows, self._params.step())
        made = written_for(self._setting, self._hypernet, rows, alike=bool(self._params.alike))
        self._made = dict(zip(devices, made, strict=True))
        whole = {
            device: Assignment(
                self._structure,
                recipe_for(self._setting, round_number, device),
                self._setting.returns,
                bits(self._known.rows[device]),
            )
            for device in devices
        }
        return fit_batches(self._setting, whole, reports=reports, left=self._left)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The model written for this device."""
        return Emission({**self._made[device], **self._running.values})

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Remember the change; a learnt vector follows it at once."""
        row = floats(update.assignment.marks)
        change = {name: value for name, value in update.tensors.items() if name not in self._running.values}
        self._hypernet.add(row, change, update.weight)
        if self._params.describe == "embedding":
            gradient = self._hypernet.input_gradient(row, change)
            self._known.rows[device] = row - np.float32(self._params.server_rate) * gradient
        else:
            self._known.note(device, row)
        # In a sum every device counts the same.
        samples = 1 if self._setting.sums else update.stats.samples
        self._running.add(update.tensors, samples * update.weight)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """What a device made of the model that was written for it, beside what all others made of theirs."""
        return "", update.tensors

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Σ J' Δ_i = J' Σ Δ_i where J is of one description; for sums only, in which devices share one."""
        return "devices" if self._setting.sums and self._params.alike and self._params.parallel else None

    def planning_state(self) -> MethodState:
        """Who shares which description: it depends on who came together."""
        return self._known.state() if self._params.alike else MethodState()

    def restore_planning(self, state: MethodState) -> None:
        """Know again who shares which."""
        if state.tensors:
            self._known.restore(state)

    def advance(self) -> dict[str, float]:
        """Let the hypernetwork learn from the round's changes."""
        norm = self._hypernet.learn(self._params.step())
        self._running.advance()
        self._made = {}
        return {"hypernet_gradient": norm}

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The model written for this device; for an unknown one, from the mean of all descriptions."""
        row = self._known.rows.get(device)
        if row is None:
            rows = [self._known.rows[name] for name in sorted(self._known.rows)]
            row = np.mean(rows, axis=0) if rows else np.zeros(self._hypernet.form.inputs, np.float32)
        return self._setting.spec, {**self._hypernet.generate(row[None])[0], **self._running.values}

    def state(self) -> MethodState:
        """The hypernetwork, running statistics and the devices' descriptions."""
        return hypernet_state(self._hypernet) | self._running.state() | self._known.state()

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        restore_hypernet(state, lambda: self._hypernet)
        self._running.restore(state)
        self._known.restore(state)
        self._made = {}
