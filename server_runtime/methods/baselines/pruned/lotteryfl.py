"""LotteryFL: every device looks for its own winning ticket, a sparse part of the common model.

Paper: Li et al., LotteryFL: Empower Edge Intelligence with Personalized and Communication-Efficient Federated Learning
(SEC 2021).
Implemented: a mask per device; once the device is good enough and above its final density, the smallest r_p of the
entries that remain in each layer go, and the ticket begins anew from the initial weights; entries are averaged over the
devices that hold them, others stay; only the mask's entries travel.
Left out: pruning of biases and of normalisation layers.
Differs: masks are kept and made on the server, from the weights that a device sends; "good enough" is its training
loss, because the held-out rows are for testing. Devices get a dense model with zeros, so pruning saves traffic and no
memory.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from msgspec import structs

from fedwright.protocol.messages import Report
from fedwright.server_runtime.blocks.robust_mean import robust_mean
from fedwright.server_runtime.methods.base import (
    Array,
    Assignment,
    CheckedUpdate,
    Emission,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.pruned import PruningParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.methods.shared.submodels import norm_names
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure

MASK = "mask of/"
# Whether a task begins from the common weights, or the ticket anew.
GOES_ON, ANEW = (0,), (1,)


class LotteryFL(FedAvg):
    """W_j ← Σ n_i w_ij / Σ n_i over the devices i whose ticket holds j."""

    def __init__(self, params: PruningParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._params = params
        self._structure = Structure(setting.spec, Objective(element_masks=True), setting.optimizer)
        norms = norm_names(setting.spec)
        self._prunable = [name for name, value in setting.initial.items() if value.ndim > 1 and name not in norms]
        self._masks: dict[str, Tensors] = {}
        self._anew: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._rows: list[Tensors] = []
        self._total = {name: np.zeros_like(value) for name, value in self._weights.items()}
        self._count = {name: np.zeros_like(value) for name, value in self._weights.items()}

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """As FedAvg, each with its ticket."""
        return {
            device: replace(
                one,
                marks=ANEW if device in self._anew else GOES_ON,
                returns=structs.replace(one.returns, masked=device in self._masks),
            )
            for device, one in super().assign(reports, round_number).items()
        }

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The entries of the device's ticket."""
        masks = self._masks.get(device, {})
        start = self._setting.initial if assignment.marks == ANEW else self._weights
        return Emission(masked(start, masks), masks=masks)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Count what the device holds; prune its ticket when it is ready."""
        masks, weight = self._masks.get(device, {}), np.float32(update.weight * update.stats.samples)
        learned = self._learned(update)
        if self._setting.combine.by_entry:
            self._rows.append(self.compared(device, update)[1])
        else:
            for name, value in learned.items():
                held = masks.get(name, np.ones((1,) * value.ndim, bool))
                self._total[name] += np.where(held, weight * (value - self._weights[name]), 0).astype(value.dtype)
                self._count[name] += (weight * held).astype(value.dtype)
        self._anew.discard(device)
        loss = update.stats.loss_last
        if loss is not None and loss < self._params.loss_below and self.density(device) > self._params.least:
            self._masks[device] = {name: self._pruned(learned[name], masks.get(name)) for name in self._prunable}
            self._anew.add(device)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors]:
        """How far the ticket's entries went from the common weights."""
        masks = self._masks.get(device, {})
        moved = {name: value - self._weights[name] for name, value in self._learned(update).items()}
        return "", {n: np.where(masks[n], value, np.nan) if n in masks else value for n, value in moved.items()}

    def _learned(self, update: CheckedUpdate) -> Tensors:
        start = self._setting.initial if update.assignment.marks == ANEW else self._weights
        return {name: start[name] + change for name, change in update.tensors.items()}

    def _pruned(self, value: Array, mask: Array | None) -> Array:
        """Without the smallest of the entries that remain, as far as the final density allows."""
        held = np.ones(value.shape, bool) if mask is None else mask
        kept = max(int(held.sum() * (1 - self._params.prune_ratio)), round(self._params.least * value.size), 1)
        order = np.argsort(np.where(held, -np.abs(value), np.inf), axis=None, kind="stable")
        found = np.zeros(value.size, bool)
        found[order[:kept]] = True
        pruned: Array = found.reshape(value.shape) & held
        return pruned

    def density(self, device: str) -> float:
        """Share of the prunable entries that a device's ticket holds."""
        if device not in self._masks:
            return 1.0
        masks = self._masks[device].values()
        return float(sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks))

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Every device holds other entries."""
        return None

    def advance(self) -> dict[str, float]:
        """Average each entry over those that hold it."""
        if self._rows:
            rows = robust_mean(self._rows, self._setting.combine, changes=self._rows)
            self._total |= {name: np.nan_to_num(value) for name, value in rows.items()}
        counts = {name: np.where(count > 0, count, 1) for name, count in self._count.items()}
        self._weights = {
            name: (value + self._total[name] / counts[name]).astype(value.dtype)
            for name, value in self._weights.items()
        }
        self._begin()
        densities = [self.density(device) for device in self._masks]
        return {"density": float(np.mean(densities)) if densities else 1.0}

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's ticket of the common model."""
        return self._structure.spec, masked(self._weights, self._masks.get(device, {}))

    def state(self) -> MethodState:
        """The common weights, the tickets and who begins anew."""
        masks = {
            f"{MASK}{device}/{n}": v.astype(np.uint8) for device, own in self._masks.items() for n, v in own.items()
        }
        return super().state() | MethodState.of(masks, anew=sorted(self._anew))

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._anew, self._masks = set(state.record("anew", list[str])), {}
        for key, value in state.below(MASK).items():
            device, _, name = key.partition("/")
            self._masks.setdefault(device, {})[name] = value.astype(bool)
        self._begin()


def masked(weights: Tensors, masks: Tensors) -> Tensors:
    """The weights with zeros outside of the masks."""
    return weights | {
        name: np.where(mask, weights[name], 0).astype(weights[name].dtype) for name, mask in masks.items()
    }
