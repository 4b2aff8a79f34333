"""What methods share that train adapters on a base: where the base comes from, and the model of both together."""

import logging
from pathlib import Path

import numpy as np

from fedwright.protocol import tensors
from fedwright.protocol.errors import ConfigError, FedwrightError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks import lora
from fedwright.server_runtime.blocks.robust import Mean, make_mean
from fedwright.server_runtime.methods.base import CheckedUpdate, MethodState, Setting, Tensors
from fedwright.server_runtime.methods.params.generated_models import BaseParams
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.zoo import adapter_models

log = logging.getLogger(__name__)

BASE = "base/"
# Where nobody knows how long the run is.
UNKNOWN_HALF = 20


class FrozenBase:
    """W ← W + Σ n_i Δ_i / Σ n_i in the first rounds; then W stays and only adapters learn."""

    def __init__(self, params: BaseParams, setting: Setting) -> None:
        self._rounds, self._rank, self._setting = _pretraining(params, setting), params.rank, setting
        self.spec = adapter_models.with_rank(setting.spec, params.rank)
        module = zoo.create(self.spec, seed=derive_seed(setting.seed, "adapters"))
        names, initial = zoo.adapter_names(module), initial_weights(module)
        if not names or len(initial) != len(list(module.parameters())):
            choice = ", ".join(sorted(name for name, entry in zoo.MODELS.items() if entry.rank is not None))
            raise ConfigError(
                f"model {setting.spec.model} has no adapters, or running statistics beside them; choose one of"
                f" {choice}, or build your own with LoraLinear and without batch normalisation (docs/own-model.md)"
            )
        self.adapters: Tensors = {name: initial[name] for name in names}
        self.weights: Tensors = {name: setting.initial[name] for name in initial if name not in names}
        if params.base is not None:
            self.weights = _read(params.base, self.weights)
        # A model of the user's own has adapters of one rank.
        cut = adapter_models.with_rank(setting.spec, 1) != self.spec
        self.ranks = tuple(range(1, params.rank + 1)) if cut else (params.rank,)
        self._advanced = 0
        self._change = self._new_mean()

    @property
    def frozen(self) -> bool:
        """Whether the base is done."""
        return self._advanced >= self._rounds

    def structure(self, trainable: tuple[str, ...], rank: int) -> Structure:
        """The model with adapters of this rank, of which these tensors learn."""
        spec = adapter_models.with_rank(self._setting.spec, rank or self._rank)
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
            lora.merge({**self.weights, **self.adapters, **written}),
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


def _read(file: str, wanted: Tensors) -> Tensors:
    """The base's tensors from a file, which may hold others too."""
    try:
        found = tensors.load(Path(file))
    except (OSError, FedwrightError) as err:
        raise ConfigError(f"the base cannot be read from {file}: {err}") from err
    for name, value in wanted.items():
        if name not in found or found[name].shape != value.shape:
            here = f"shape {found[name].shape}" if name in found else "no such tensor"
            raise ConfigError(
                f"the base in {file} has {here} for {name}, where the model has shape {value.shape}; "
                f"give the weights of the same model"
            )
    return {name: np.asarray(found[name], value.dtype) for name, value in wanted.items()}
