"""What methods share that train adapters on a base: where the base comes from, and the model of both together."""

import logging

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.artifacts.classifier import classifier_matrix
from fedwright.server_runtime.artifacts.pretrained import start_from
from fedwright.server_runtime.blocks import lora
from fedwright.server_runtime.blocks.robust import Mean, make_mean
from fedwright.server_runtime.methods.base import CheckedUpdate, MethodState, Setting, Tensors
from fedwright.server_runtime.methods.params.generated_models import BaseParams
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.zoo import adapter_models
from fedwright.server_runtime.zoo.low_rank import linear_layers

log = logging.getLogger(__name__)

BASE = "base/"
ALL_LINEAR = "all-linear"
# Where nobody knows how long the run is.
UNKNOWN_HALF = 20


class FrozenBase:
    """W ← W + Σ n_i Δ_i / Σ n_i in the first rounds; then W stays and only adapters learn."""

    def __init__(self, params: BaseParams, setting: Setting) -> None:
        self._rounds, self._rank, self._setting = _pretraining(params, setting), params.rank, setting
        self._scale = 1.0 if params.alpha is None else params.alpha / params.rank
        self.spec = _adapted(params, setting, self._scale)
        module = zoo.create(self.spec, seed=derive_seed(setting.seed, "adapters"))
        names, initial = zoo.adapter_names(module), initial_weights(module)
        if not names:
            raise ConfigError(
                f"model {setting.spec.model} has no adapters; name the layers that should have some in method.targets,"
                f' such as ["fc1", "fc2"] or ["all-linear"]'
            )
        self.adapters: Tensors = {name: initial[name] for name in names}
        self.weights: Tensors = {name: setting.initial[name] for name in initial if name not in names}
        if params.base is not None:
            self.weights = start_from(params.base, self.weights)
        # A model that comes with its adapters has them of one rank.
        cut = params.rank > 1 and adapter_models.with_rank(self.spec, 1) != self.spec
        self.ranks = tuple(range(1, params.rank + 1)) if cut else (params.rank,)
        self._advanced = 0
        self._change = self._new_mean()

    @property
    def frozen(self) -> bool:
        """Whether the base is done."""
        return self._advanced >= self._rounds

    @property
    def rounds(self) -> int:
        """After how many rounds it is."""
        return self._rounds

    def structure(self, trainable: tuple[str, ...], rank: int) -> Structure:
        """The model with adapters of this rank, of which these tensors learn."""
        spec = adapter_models.with_rank(self.spec, rank or self._rank)
        return Structure(spec, optimizer=self._setting.optimizer, trainable=trainable)

    def add(self, update: CheckedUpdate) -> None:
        """Fold in what a device made of the base."""
        self._change.add(update.tensors, {}, update.stats.samples * update.weight)

    def advance(self) -> None:
        """Count a round; apply the mean change while the base learns."""
        if not self.frozen:
            change = self._change.result()
            self.weights = {name: (value + change[name]).astype(value.dtype) for name, value in self.weights.items()}
            self._change = self._new_mean()
        self._advanced += 1

    def merged(self, written: Tensors) -> tuple[ModelSpec, Tensors]:
        """The base with these tensors in place; without adapters where the zoo has that model, else with empty ones."""
        merged, plain = (
            lora.merge({**self.weights, **self.adapters, **written}, self._scale),
            adapter_models.without_adapters(self.spec),
        )
        if plain is not None:
            return plain, merged
        return self.spec, merged | {name: np.zeros_like(value) for name, value in self.adapters.items()}

    def state(self) -> MethodState:
        """The base, how many rounds there were and after how many it is frozen."""
        weights = {BASE + name: value for name, value in self.weights.items()}
        return MethodState.of(weights, advanced=self._advanced, pretrain_rounds=self._rounds)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._advanced = state.record("advanced", int)
        # A run that is made longer does not thaw its base.
        self._rounds = state.record("pretrain_rounds", int)
        self.weights = {name: state.tensors[BASE + name] for name in self.weights}
        self._change = self._new_mean()

    def _new_mean(self) -> Mean:
        nothing = {name: np.zeros_like(value) for name, value in self.weights.items()}
        return make_mean(self._setting.combine, nothing, {name: (None,) * v.ndim for name, v in nothing.items()})


def _adapted(params: BaseParams, setting: Setting, scale: float) -> ModelSpec:
    """The model with adapters: those that it comes with, or in the layers that are named."""
    if not params.targets:
        if params.alpha is not None:
            raise ConfigError("method.alpha scales adapters of layers that are named; set method.targets too")
        return adapter_models.with_rank(setting.spec, params.rank)
    targets = params.targets
    if ALL_LINEAR in (targets, *targets):
        last = (classifier_matrix(setting.spec) or "").rpartition(".")[0]
        targets = linear_layers(zoo.create(setting.spec, seed=0), but=(last,))
    return adapter_models.adapted(setting.spec, targets, rank=params.rank, scale=scale)


def _pretraining(params: BaseParams, setting: Setting) -> int:
    """Rounds before the base is frozen; a warning where they leave none for adapters."""
    if params.pretrain_rounds is None:
        return setting.rounds // 2 if setting.rounds else UNKNOWN_HALF
    if 0 < setting.rounds <= params.pretrain_rounds:
        log.warning(
            "method.pretrain_rounds is %d and the run has %d rounds, so that no adapter is trained; take fewer",
            params.pretrain_rounds,
            setting.rounds,
        )
    return params.pretrain_rounds
