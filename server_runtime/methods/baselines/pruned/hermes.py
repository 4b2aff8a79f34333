"""Hermes: every device prunes channels of a model of its own; only what all of a round's models have is averaged.

Paper: Li et al., Hermes: An Efficient Federated Learning Framework for Heterogeneous Mobile Clients (MobiCom 2021),
known here by its abstract and by what FedConv's paper says of it.
Implemented: structured pruning: once a device is good enough and above its final size, the r_p of its channels with the
smallest norms go; parameters that all models of a round have in common are averaged, the others stay the device's own.
Left out: group lasso in the device's loss.
Differs: pruning is done on the server from the weights that a device sends, at the same ratio in every layer; "good
enough" is its training loss, because the held-out rows are for testing. A device's model rests on the server between
rounds. New devices begin with the mean of what others have.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.channel_importance import channel_norms, largest_plan
from fedwright.server_runtime.blocks.robust import make_mean
from fedwright.server_runtime.blocks.slicing import Index, grid, group_size, put, take, tensor_index
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
from fedwright.server_runtime.methods.params.pruned import PruningParams
from fedwright.server_runtime.methods.shared.budget_fit import LeftOut, fit_batches
from fedwright.server_runtime.methods.shared.personal_models import models_state, restored_models
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.spec import ModelSpec, Structure

Kept = dict[str, Index]


class Hermes(Method):
    """w_ij ← Σ n_k w_kj / Σ n_k where all devices k of the round have j; else w_ij stays."""

    def __init__(self, params: PruningParams, setting: Setting) -> None:
        if setting.spec.sizes:
            raise ConfigError(
                f"channels are pruned from the whole of {setting.spec.model}, but model.model gives it a width;"
                " leave out the part from '@' on"
            )
        self._params, self._setting = params, setting
        self._axes, self._full = zoo.axes_of(setting.spec), zoo.full_sizes(setting.spec)
        self._common: Tensors = dict(setting.initial)
        self._own: dict[str, Tensors] = {}
        self._kept: dict[str, Kept] = {}
        self._heard: dict[str, float] = {}
        self._left = LeftOut()

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Everyone trains the model that it has left."""
        whole = {
            device: Assignment(
                Structure(self._spec(device), optimizer=self._setting.optimizer),
                recipe_for(self._setting, round_number, device),
                self._setting.returns,
            )
            for device in sorted(reports)
            if reports[device].trains
        }
        return fit_batches(self._setting, whole, reports=reports, left=self._left)

    def _spec(self, device: str) -> ModelSpec:
        kept = self._kept.get(device)
        if kept is None:
            return self._setting.spec
        return replace(self._setting.spec, sizes=tuple((group, len(kept[group])) for group in sorted(kept)))

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's own weights."""
        return Emission(self._own.get(device, self._common))

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Take the device's change into its model, and prune it when it is ready."""
        before = self._own.get(device, self._common)
        step = np.float32(update.weight)
        self._own[device] = {
            name: (value + step * update.tensors[name]).astype(value.dtype) if name in update.tensors else value
            for name, value in before.items()
        }
        self._heard[device] = float(update.stats.samples * update.weight)
        loss = update.stats.loss_last
        if loss is not None and loss < self._params.loss_below:
            self._prune(device)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors]:
        """The change at its place in the whole model."""
        nothing = {name: np.full(value.shape, np.nan, np.float32) for name, value in self._common.items()}
        return "", put(nothing, update.tensors, self._axes, self._kept.get(device, {}))

    def _prune(self, device: str) -> None:
        """Leave out the channels with the smallest norms, the same share of each group."""
        whole = {name: np.zeros_like(value) for name, value in self._common.items()}
        whole = put(whole, self._own[device], self._axes, self._kept.get(device, {}))
        scores = channel_norms(whole, self._axes)
        before = self._kept.get(device) or {group: np.arange(self._full[group]) for group in scores}
        for group, score in scores.items():
            # Channels that are gone already stay behind those that the device has.
            score[~np.isin(np.arange(len(score)), before[group])] = -1.0
        keep, least = 1 - self._params.prune_ratio, self._params.least
        sizes = {
            group: min(len(kept), max(group_size(len(kept), keep), group_size(self._full[group], least)))
            for group, kept in before.items()
        }
        self._kept[device] = largest_plan(scores, sizes)
        self._own[device] = take(whole, self._axes, self._kept[device])

    def advance(self) -> dict[str, float]:
        """Average what all models of the round have in common."""
        if self._heard:
            shared = {name: self._meet(name, value) for name, value in self._common.items()}
            for device in self._heard:
                plan = self._kept.get(device, {})
                for name, (mean, everywhere) in shared.items():
                    at = grid(mean.shape, tensor_index(mean.shape, self._axes[name], plan))
                    own = self._own[device][name]
                    self._own[device][name] = np.where(everywhere[at], mean[at], own).astype(own.dtype)
            self._common = {name: mean for name, (mean, _) in shared.items()}
        self._heard = {}
        sizes = [sum(value.size for value in own.values()) for own in self._own.values()]
        whole = sum(value.size for value in self._common.values())
        return {"density": float(np.mean(sizes)) / whole if sizes else 1.0}

    def _meet(self, name: str, common: Array) -> tuple[Array, Array]:
        """The mean of a tensor over those that hold an entry, the old value where nobody does; where all hold it."""
        places = {
            device: grid(common.shape, tensor_index(common.shape, self._axes[name], self._kept.get(device, {})))
            for device in sorted(self._heard)
        }
        holders = np.zeros(common.shape, np.int64)
        mean = make_mean(self._setting.combine, {name: common}, {name: self._axes[name]})
        for device, at in places.items():
            mean.add({name: self._own[device][name]}, self._kept.get(device, {}), self._heard[device])
            holders[at] += 1
        return mean.result()[name], holders == len(self._heard)

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's own model; the mean of what devices have for no device."""
        if device in self._own:
            return self._spec(device), self._own[device]
        return self._setting.spec, self._common

    def state(self) -> MethodState:
        """Every device's model and the channels that it has left."""
        kept = {d: {group: index.tolist() for group, index in own.items()} for d, own in self._kept.items()}
        models = models_state("own", {device: (self._spec(device), own) for device, own in self._own.items()})
        return models | MethodState.of(dict(self._common), kept=kept)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._common = {name: state.tensors[name] for name in self._setting.initial}
        self._own = {device: own for device, (_, own) in restored_models("own", state).items()}
        found = state.record("kept", dict[str, dict[str, list[int]]])
        self._kept = {d: {g: np.array(index, np.int64) for g, index in own.items()} for d, own in found.items()}
        self._heard = {}
