"""FedAvgM, FedAdam and FedYogi: FedAvg whose server takes the mean change as a gradient for an optimizer of its own.

Paper: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification
(2019), for FedAvgM; Reddi et al., Adaptive Federated Optimization (ICLR 2021), Algorithm 2, for FedAdam and FedYogi.
Implemented: momentum of the server; first and second moments without bias correction, the second from τ² on.
Left out: FedAdagrad.
Differs: devices count by their samples, as in FedAvg; running statistics are averaged plainly; a round without updates
is no step.
"""

import numpy as np

from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Array, MethodState, Setting, Tensors
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.averaging import AdaptiveParams, FedAvgMParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams

FIRST, SECOND = "first moment/", "second moment/"


class FedAvgM(FedAvg):
    """v ← β v + Δ; W ← W + η v."""

    def __init__(self, params: FedAvgMParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._params = params
        self._velocity = {name: np.zeros_like(setting.initial[name]) for name in parameter_names(setting)}

    def server_step(self, change: Tensors) -> Tensors:
        """η v for parameters, the mean change for running statistics."""
        momentum, rate = np.float32(self._params.momentum), np.float32(self._params.server_rate)
        self._velocity = {name: momentum * value + change[name] for name, value in self._velocity.items()}
        return change | {name: rate * value for name, value in self._velocity.items()}

    def state(self) -> MethodState:
        """The global weights and the velocity."""
        return super().state() | MethodState({FIRST + name: value for name, value in self._velocity.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._velocity = state.below(FIRST)


class FedAdam(FedAvg):
    """m ← β₁ m + (1 − β₁) Δ; v ← β₂ v + (1 − β₂) Δ²; W ← W + η m / (√v + τ)."""

    def __init__(self, params: AdaptiveParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._params = params
        initial = {name: setting.initial[name] for name in parameter_names(setting)}
        self._first = {name: np.zeros_like(value) for name, value in initial.items()}
        self._second = {name: np.full_like(value, params.tau**2) for name, value in initial.items()}

    def server_step(self, change: Tensors) -> Tensors:
        """The optimizer's step for parameters, the mean change for running statistics."""
        beta1, tau = np.float32(self._params.beta1), np.float32(self._params.tau)
        rate = np.float32(self._params.server_rate)
        steps = {}
        for name in self._first:
            self._first[name] = beta1 * self._first[name] + (1 - beta1) * change[name]
            self._second[name] = self.second_moment(self._second[name], change[name] * change[name])
            steps[name] = rate * self._first[name] / (np.sqrt(self._second[name]) + tau)
        return change | steps

    def second_moment(self, before: Array, square: Array) -> Array:
        """β₂ v + (1 − β₂) Δ²."""
        beta2 = np.float32(self._params.beta2)
        mixed: Array = beta2 * before + (1 - beta2) * square
        return mixed

    def state(self) -> MethodState:
        """The global weights and both moments."""
        moments = {FIRST + name: value for name, value in self._first.items()}
        return super().state() | MethodState(moments | {SECOND + name: value for name, value in self._second.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._first, self._second = state.below(FIRST), state.below(SECOND)


class FedYogi(FedAdam):
    """As FedAdam with v ← v − (1 − β₂) Δ² sign(v − Δ²), so that v grows no faster than it falls."""

    def second_moment(self, before: Array, square: Array) -> Array:
        """v − (1 − β₂) Δ² sign(v − Δ²)."""
        step: Array = (1 - np.float32(self._params.beta2)) * square * np.sign(before - square)
        return before - step


def parameter_names(setting: Setting) -> list[str]:
    """What is trained by gradients: the tensors of a model but for running statistics."""
    named = zoo.create(setting.spec, seed=0).named_parameters()
    return [name for name, _ in named if name in setting.initial]
