"""SCAFFOLD: control variates take the drift of unlike data out of the devices' steps.

Paper: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML 2020).
Implemented: Algorithm 1: steps along g_i(y) − c_i + c; c_i by option II, c_i − c + (x − y_i) / (K η_l); x by η_g times
the mean change; c by the mean change of the c_i over all N devices.
Left out: option I (c_i from a further pass over the data).
Differs: option II needs only what a device sends anyway, so c_i lives on the server and c − c_i comes with the model:
a device stays without state and sends as much as in FedAvg. Its steps are plain SGD, because (x − y_i) / (K η_l) is no
mean of gradients with momentum. N counts the devices met so far. In asynchronous rounds c may have moved since it was
sent.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from fedwright.protocol.messages import Report
from fedwright.server_runtime.blocks.robust_mean import robust_mean
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.baselines.averaging.server_optimizers import parameter_names
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.averaging import ScaffoldParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.spec import Objective, Structure

COMMON, OWN, SIDE = "common variate/", "own variate/", "correction/"


class Scaffold(FedAvg):
    """y ← y − η_l (g_i(y) − c_i + c); x ← x + η_g mean(y_i − x); c ← c + Σ (c_i⁺ − c_i) / N."""

    by_samples = False

    def __init__(self, params: ScaffoldParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._params = params
        plain = replace(setting.optimizer, kind="sgd", momentum=0.0)
        self._structure = Structure(setting.spec, Objective(linear=True), plain)
        self._nothing = {name: np.zeros_like(setting.initial[name]) for name in parameter_names(setting)}
        self._common: Tensors = dict(self._nothing)
        self._own: dict[str, Tensors] = {}
        self._moved: Tensors = dict(self._nothing)
        self._moves: list[Tensors] = []
        self._met: set[str] = set()

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Count the devices that may ever train."""
        self._met |= {device for device, report in reports.items() if report.trains}

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """As FedAvg."""
        self.meet(reports)
        return super().assign(reports, round_number)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The global weights, and c − c_i."""
        own = self._own.get(device, self._nothing)
        return Emission(self._weights, {SIDE + name: self._common[name] - own[name] for name in own})

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Fold Δ_i into the mean and learn c_i from it."""
        super().absorb(device, update)
        length = np.float32(update.stats.steps * update.assignment.recipe.learning_rate)
        if length:
            before = self._own.get(device, self._nothing)
            # x − y_i is −Δ_i.
            after = {n: c_i - self._common[n] - update.tensors[n] / length for n, c_i in before.items()}
            self._count_move({name: after[name] - before[name] for name in after}, update.weight)
            self._own[device] = after
        return None

    def _count_move(self, move: Tensors, weight: float) -> None:
        """c_i⁺ − c_i, by what a robust rule lets the change count for."""
        combine = self._setting.combine
        if combine.by_entry:
            self._moves.append(move)
            return
        share = np.float32(weight if combine.weighs_updates else 1)
        self._moved = {name: value + share * move[name] for name, value in self._moved.items()}

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Each device's own change is needed for its c_i."""
        return None

    def server_step(self, change: Tensors) -> Tensors:
        """η_g times the mean change of parameters; c moves with the c_i."""
        count = np.float32(max(1, len(self._met | self._own.keys())))
        if self._moves:
            middle = robust_mean(self._moves, self._setting.combine, changes=self._moves)
            self._moved = {name: len(self._moves) * value for name, value in middle.items()}
        self._common = {name: value + self._moved[name] / count for name, value in self._common.items()}
        self._forget_moves()
        rate = np.float32(self._params.server_rate)
        return {name: rate * step if name in self._common else step for name, step in change.items()}

    def _forget_moves(self) -> None:
        self._moved, self._moves = dict(self._nothing), []

    def planning_state(self) -> MethodState:
        """How many devices there are."""
        return MethodState.of(met=sorted(self._met))

    def restore_planning(self, state: MethodState) -> None:
        """Know the devices again that a plan was made with."""
        self._met = set(state.record("met", list[str]))

    def state(self) -> MethodState:
        """The global weights and all control variates."""
        own = {f"{OWN}{device}/{name}": v for device, tensors in self._own.items() for name, v in tensors.items()}
        common = {COMMON + name: value for name, value in self._common.items()}
        return super().state() | MethodState(common | own) | self.planning_state()

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self.restore_planning(state)
        self._common, self._own = state.below(COMMON), {}
        self._forget_moves()
        for key, value in state.below(OWN).items():
            device, _, name = key.partition("/")
            self._own.setdefault(device, {})[name] = value
