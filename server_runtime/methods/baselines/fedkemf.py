"""FedKEMF: a small knowledge network travels; own models and it teach one another on the devices.

Paper: Yu et al., Resource-aware Federated Learning using Knowledge Extraction and Multi-model Fusion (FedKEMF, 2022).
Implemented: own models of any architecture; mutual learning with the knowledge network on own data; the server fuses
the devices' knowledge networks by ensemble distillation on public examples without labels (mean or maximum of logits),
from their average on.
Left out: sending the knowledge network alone; a device's own model rests on the server too.
Differs: mutual learning is done in turn, the own model first, instead of at the same time.
"""

from functools import cached_property

import numpy as np
import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.robust import UNAVERAGED
from fedwright.server_runtime.blocks.robust_mean import robust_mean
from fedwright.server_runtime.blocks.torch_device import on_device
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.params.personal_models import FedKEMFParams
from fedwright.server_runtime.methods.shared.personal_models import PersonalModels
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.methods.shared.teachers import TEACHER, load
from fedwright.server_runtime.public_data.examples import need_public
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import Objective, Structure

KNOWLEDGE = "knowledge/"
# The two stages of a round: the device's own model learns, then the knowledge network.
OWN, NETWORK = 0, 1
BATCH = 64
LOGITS = "logits"


class FedKEMF(PersonalModels):
    """k ← argmin KL(joined logits of the devices' k_m on public x ‖ k(x)), from mean_m k_m on."""

    def __init__(self, params: FedKEMFParams, setting: Setting) -> None:
        super().__init__(params.own, setting)
        self._params = params
        self._knowledge: Tensors = dict(setting.initial)
        self._networks: list[Tensors] = []

    @cached_property
    def _public(self) -> Tensor:
        return on_device(need_public(self.setting.public, "fedkemf").x, self.setting.device)

    def assignment(self, device: str, round_number: int) -> Assignment:
        """First the device's own model, taught by the knowledge network."""
        need_public(self.setting.public, "fedkemf")
        return self._stage(device, round_number, OWN)

    def _stage(self, device: str, number: int, stage: int) -> Assignment:
        student, teacher = self.specs[device], self.setting.spec
        if stage == NETWORK:
            student, teacher = teacher, student
        recipe, returns = recipe_for(self.setting, number, device), self.setting.returns
        if stage == OWN:
            returns = structs.replace(returns, evaluate=False)
        else:
            recipe = structs.replace(recipe, seed=derive_seed(recipe.seed, "network"))
        objective = Objective(distill=self._params.distill, teacher=teacher)
        return Assignment(Structure(student, objective, self.setting.optimizer), recipe, returns, (stage, number))

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """One of the two models, and the other as its teacher."""
        student, teacher = self.weights[device], self._knowledge
        if assignment.marks[0] == NETWORK:
            student, teacher = teacher, student
        return Emission(student, {TEACHER + name: value for name, value in teacher.items()})

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """After the own model the knowledge network."""
        stage, number = update.assignment.marks
        if stage == OWN:
            self.take(device, update)
            return Relay(device, self._stage(device, number, NETWORK))
        step = np.float32(update.weight)
        self._networks.append({name: value + step * update.tensors[name] for name, value in self._knowledge.items()})
        return None

    def advance(self) -> dict[str, float]:
        """Fuse the devices' knowledge networks."""
        networks, self._networks = self._networks, []
        if not networks:
            return {"fusion_loss": 0.0}
        moved = [{name: own[name] - value for name, value in self._knowledge.items()} for own in networks]
        target = self._joined(networks, moved)
        mean = robust_mean(networks, self.setting.combine, changes=moved)
        student = zoo.create(self.setting.spec, seed=0)
        load(student, mean)
        student.to(self.setting.device).train()
        optimizer = torch.optim.Adam(student.parameters(), lr=self._params.fuse_rate)
        rng = torch.Generator().manual_seed(derive_seed(self.setting.seed, "fusion") % 2**62)
        loss = torch.zeros(())
        for _ in range(self._params.fuse_epochs):
            for rows in torch.split(torch.randperm(len(target), generator=rng), BATCH):
                if len(rows) < 2:
                    continue
                said = functional.log_softmax(student(self._public[rows]), dim=1)
                loss = functional.kl_div(said, target[rows], reduction="batchmean")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self._knowledge = initial_weights(student)
        return {"fusion_loss": float(loss.detach())}

    def _joined(self, networks: list[Tensors], moved: list[Tensors]) -> Tensor:
        """What the networks say together of the public examples: probabilities [n, classes]."""
        found = []
        module = zoo.create(self.setting.spec, seed=0).to(self.setting.device).eval()
        with torch.no_grad():
            for own in networks:
                load(module, own)
                found.append(torch.cat([module(part) for part in torch.split(self._public, BATCH)]))
        if self.setting.combine.kind not in UNAVERAGED:
            rows = [{LOGITS: one.cpu().numpy()} for one in found]
            mean = robust_mean(rows, self.setting.combine, changes=moved)[LOGITS]
            return functional.softmax(on_device(mean, self.setting.device), dim=1)
        stacked = torch.stack(found)
        joined = stacked.mean(0) if self._params.ensemble == "mean" else stacked.amax(0)
        return functional.softmax(joined, dim=1)

    def state(self) -> MethodState:
        """Every device's model and the knowledge network."""
        return super().state() | MethodState({KNOWLEDGE + name: value for name, value in self._knowledge.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._knowledge, self._networks = state.below(KNOWLEDGE), []
