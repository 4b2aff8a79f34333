"""Private adapters: every device trains its own adapter on a frozen base that all share; HyperFLoRA's ρ-private.

Paper: the baseline of HyperFLoRA (SDM 2024).
Implemented: pre-training by FedAvg, or a base from a file; frozen base, fetched once; adapters that only their own
device trains. Devices that never train get the base.
Left out: models with running statistics.
Differs: a device's adapter rests on the server between rounds, so that its loss costs nothing; nobody else reads it.
"""

from collections.abc import Hashable, Mapping

from fedwright.protocol.messages import Report
from fedwright.server_runtime.blocks import lora
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
from fedwright.server_runtime.methods.params.generated_models import AdaptersPrivateParams
from fedwright.server_runtime.methods.shared.budget_fit import LeftOut, fit_batches
from fedwright.server_runtime.methods.shared.frozen_base import FrozenBase
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.spec import ModelSpec

OWN = "own/"
PRETRAIN, ADAPT = (0,), (1,)


class AdaptersPrivate(Method):
    """ρ_i ← ρ_i + Δ_i for each device i, from the same start."""

    def __init__(self, params: AdaptersPrivateParams, setting: Setting) -> None:
        self._params, self._setting = params, setting
        self._base = FrozenBase(params, setting)
        self._shapes = {name: value.shape for name, value in self._base.adapters.items()}
        self._own: dict[str, Array] = {}
        self._left = LeftOut()

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """The base for everyone, then everyone's own adapter."""
        marks = ADAPT if self._base.frozen else PRETRAIN
        trainable = tuple(self._base.adapters if self._base.frozen else self._base.weights)
        structure = self._base.structure(trainable, self._params.rank)
        whole = {
            device: Assignment(structure, recipe_for(self._setting, round_number, device), self._setting.returns, marks)
            for device in sorted(reports)
            if reports[device].trains
        }
        return fit_batches(self._setting, whole, reports=reports, left=self._left)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The base while it is trained, then the device's adapter with the base beside it."""
        if assignment.marks == PRETRAIN:
            return Emission(self._base.weights, frozen=self._base.adapters)
        return Emission(self._adapter(device), frozen=self._base.weights)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Fold in a change of the base, or keep the device's own."""
        if update.assignment.marks == PRETRAIN:
            if not self._base.frozen:
                self._base.add(update)
            return None
        before, change = (lora.flatten(self._shapes, each) for each in (self._adapter(device), update.tensors))
        self._own[device] = before + update.weight * change
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The base's change; an adapter is its device's own."""
        return ("", update.tensors) if update.assignment.marks == PRETRAIN else None

    def advance(self) -> dict[str, float]:
        """A step of the base while it learns; adapters have moved already."""
        self._base.advance()
        return {"adapters": float(len(self._own))}

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The base with the device's adapter merged; without one, the base."""
        return self._base.merged(self._adapter(device))

    def state(self) -> MethodState:
        """The base and everyone's adapter."""
        return self._base.state() | MethodState({OWN + device: value for device, value in self._own.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._base.restore(state)
        self._own = state.below(OWN)

    def _adapter(self, device: str) -> Tensors:
        own = self._own.get(device)
        return self._base.adapters if own is None else lora.unflatten(self._shapes, own)
