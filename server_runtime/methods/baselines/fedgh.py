"""FedGH: unlike feature extractors under one head, which the server trains on the devices' class means.

Paper: Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header (ACM MM 2023).
Implemented: own extractors with one head; class means of features sent up; one step of SGD on the head for each mean;
the head of all is every device's head in the next round.
Left out: nothing.
Differs: where an extractor's features have another width than the head of the run's model takes, a linear layer stands
between (the paper builds all extractors with the same width). The server steps the head's own optimizer. A device's
model rests on the server between rounds; a model that cannot be cut into blocks does not take part. With update.secure
it rests on the device, and the head learns from class means over all devices of one architecture. A class of which a
device has a single sample has no mean there (`least_per_mean` in its policy).
"""

from dataclasses import replace

import numpy as np
import torch
from msgspec import structs
from torch.nn import functional

from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_names
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
from fedwright.server_runtime.methods.params.personal_models import FedGHParams
from fedwright.server_runtime.methods.shared.personal_models import PersonalModels
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.stitched import STITCHED, cut, spell

HEAD = "head/"


class FedGH(PersonalModels):
    """H ← H - β ∇ CE(H(mean feature of class c on device m), c) for every m and c."""

    def __init__(self, params: FedGHParams, setting: Setting) -> None:
        self._params = params
        self._pieces = len(cut(zoo.create(setting.spec, seed=0), setting.spec.input_shape).blocks)
        super().__init__(params.own, setting)
        if self._pieces < 2:
            raise ConfigError(
                f"model {setting.spec.model} cannot be cut into blocks, so it gives no head; make it an nn.Sequential"
                " that ends with a linear layer, or choose one of the zoo"
            )
        names = head_names(setting.spec, setting.initial)
        self._head: Tensors = {kind: setting.initial[name] for kind, name in names.items()}
        self._means: list[tuple[Array, Array]] = []

    def spec_of(self, name: str) -> ModelSpec:
        """The model with the run's head in place of its own."""
        spec = zoo.named(name, self.setting.spec)
        if spec == self.setting.spec or spec.model.startswith(STITCHED):
            return spec
        blocks = len(cut(zoo.create(spec, seed=0), spec.input_shape).blocks)
        if blocks < 2:
            raise ConfigError(
                f"model {name} cannot be cut into blocks, so it cannot get the common head; make it an nn.Sequential"
                " that ends with a linear layer, or choose one of the zoo"
            )
        own = [(zoo.spelled(spec), index) for index in range(blocks - 1)]
        return replace(spec, model=spell([*own, (zoo.spelled(self.setting.spec), self._pieces - 1)]), sizes=())

    def assignment(self, device: str, round_number: int) -> Assignment:
        """What a device does this round; it also says what its features are."""
        plan = super().assignment(device, round_number)
        return replace(plan, returns=structs.replace(plan.returns, class_means=True))

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """Of a model that stays on its device all but the common head."""
        kept = super().personal_layers(device)
        head = head_names(self.specs[device], self.weights[device]).values() if kept else ()
        return tuple(name for name in kept if name not in head)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's own extractor under the common head."""
        return Emission(self._with_head(device))

    def _with_head(self, device: str) -> Tensors:
        names = head_names(self.specs[device], self.weights[device])
        return self.weights[device] | {name: self._head[kind] for kind, name in names.items()}

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Take the device's change and its class means."""
        if device not in self.specs:
            self.specs[device] = update.assignment.structure.spec
            self.weights[device] = self.initial(self.specs[device])
        # The change belongs to the weights that were sent, which had the common head.
        self.weights[device] = self._with_head(device)
        self.take(device, update)
        if CLASS_MEANS in update.tensors:
            self._means.append((update.tensors[CLASS_MEANS], update.tensors[CLASS_COUNTS]))
        return None

    def advance(self) -> dict[str, float]:
        """One step of the head for each device and class."""
        means, self._means = self._means, []
        losses = []
        for rows, counts in means * self._params.server_epochs:
            losses += [self._step(rows[label], int(label)) for label in np.flatnonzero(counts > 0)]
        return {"head_loss": sum(losses) / len(losses) if losses else 0.0}

    def _step(self, row: Array, label: int) -> float:
        """H ← H - β ∇ CE(H(row), label)."""
        head = {kind: torch.from_numpy(value.copy()).requires_grad_() for kind, value in self._head.items()}
        logits = functional.linear(torch.from_numpy(row.copy())[None], head["weight"], head.get("bias"))
        loss = functional.cross_entropy(logits, torch.tensor([label]))
        gradients = torch.autograd.grad(loss, list(head.values()))
        for (kind, value), gradient in zip(head.items(), gradients, strict=True):
            self._head[kind] = (value.detach() - self._params.server_rate * gradient).numpy()
        return float(loss.detach())

    def state(self) -> MethodState:
        """Every device's model and the common head."""
        return super().state() | MethodState({HEAD + kind: value for kind, value in self._head.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._head = state.below(HEAD)
        self._means = []


def head_names(spec: ModelSpec, weights: Tensors) -> dict[str, str]:
    """weight and bias of the last block, by their names in a model."""
    prefix = "head."
    if spec.model.startswith("python:"):
        prefix = (classifier_names(spec, weights) or [""])[0].rpartition(".")[0] + "."
    elif spec.model.startswith(STITCHED):
        prefix = f"blocks.{max(int(name.split('.')[1]) for name in weights if name.startswith('blocks.'))}."
    found = {name.removeprefix(prefix): name for name in weights if name.startswith(prefix)}
    if "weight" not in found or not found.keys() <= {"weight", "bias"}:
        raise ConfigError(
            f"the last block of {spec.model} is no linear layer, so it is no head; let it end with one, or choose a"
            " model of the zoo for the run"
        )
    return found
