"""FedMD: devices with unlike models agree on the logits of public examples.

Paper: Li, Wang, FedMD: Heterogenous Federated Learning via Model Distillation (2019).
Implemented: transfer learning on labelled public examples before the first round; logits of public examples from every
device, averaged; digest (mean absolute difference to the average) and revisit (cross-entropy on own data), each with
epochs and batches of its own.
Left out: a new draw of public examples in every round; all of them are used.
Differs: a device's model rests on the server between rounds, so that its loss costs nothing; only logits are shared.
Without labels there is no transfer learning. With update.secure a device's model rests on the device, and the server
sees the mean logits of devices of one architecture.
"""

from functools import cached_property

import numpy as np
from msgspec import structs

from fedwright.protocol.artifact import PUBLIC_LOGITS
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
from fedwright.server_runtime.methods.params.personal_models import FedMDParams
from fedwright.server_runtime.methods.shared.personal_models import PersonalModels
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.public_data.examples import need_public
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import Objective, Structure

CONSENSUS, TARGETS = "consensus", "target_logits"
# The two stages of a round.
PUBLIC, OWN = 0, 1


class FedMD(PersonalModels):
    """Z ← mean_m f_m(X); device m then fits f_m(X) to Z, and goes on with its own data."""

    name = "fedmd"

    def __init__(self, params: FedMDParams, setting: Setting) -> None:
        super().__init__(params.own, setting)
        self._params = params
        self._consensus: Array | None = None
        self._heard: list[Array] = []

    @cached_property
    def _public(self) -> Tensors:
        """The examples that everyone may see."""
        public = need_public(self.setting.public, self.name)
        return {"x": public.x} | ({} if public.y is None else {"y": public.y})

    def assignment(self, device: str, round_number: int) -> Assignment:
        """Public examples first where there is something to learn from them."""
        stage = PUBLIC if self._public_epochs() else OWN
        return self._stage(device, round_number, stage)

    def _public_epochs(self) -> int:
        if self._consensus is not None:
            return self._params.digest_epochs
        return self._params.transfer_epochs if "y" in self._public else 0

    def _stage(self, device: str, number: int, stage: int) -> Assignment:
        recipe, returns = recipe_for(self.setting, number, device), self.returns_of(device)
        objective = Objective()
        if stage == PUBLIC:
            batch = min(self._params.digest_batch, len(self._public["x"]))
            if self._consensus is None:
                batch = self.setting.batch
            else:
                objective = self.agreement()
            seed = derive_seed(recipe.seed, "public")
            epochs = self._public_epochs()
            recipe = structs.replace(recipe, epochs=epochs, steps=None, batch=batch, seed=seed, public=True)
            returns = structs.replace(returns, evaluate=False)
        else:
            objective = self.objective_of(device)
            returns = structs.replace(returns, logits=len(self._public["x"]))
        structure = Structure(self.specs[device], objective, self.setting.optimizer)
        return Assignment(structure, recipe, returns, (stage, number))

    def agreement(self) -> Objective:
        """What a device learns of the common logits."""
        return Objective(cross_entropy=0.0, match_logits=1.0)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's own weights, the public examples and what all say of them."""
        sides, objective = {}, assignment.structure.objective
        if (objective.match_logits or objective.correlate) and self._consensus is not None:
            sides = {TARGETS: self._consensus}
        return Emission(self.weights[device], sides, public=self._public)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """After the public examples the device's own; after those its logits count."""
        self.take(device, update)
        stage, number = update.assignment.marks
        if stage == PUBLIC:
            return Relay(device, self._stage(device, number, OWN))
        if PUBLIC_LOGITS in update.tensors:
            # A sum is the mean of several devices.
            self._heard += [update.tensors[PUBLIC_LOGITS]] * max(1, len(update.tasks))
        return None

    def advance(self) -> dict[str, float]:
        """Z ← mean_m f_m(X)."""
        moved = 0.0
        if self._heard:
            rows = [{CONSENSUS: logits} for logits in self._heard]
            consensus = robust_mean(rows, self.setting.combine, changes=rows)[CONSENSUS]
            if self._consensus is not None:
                moved = float(np.abs(consensus - self._consensus).mean())
            self._consensus, self._heard = consensus, []
        return {"consensus_moved": moved}

    def state(self) -> MethodState:
        """Every device's model and the common logits."""
        return super().state() | MethodState({} if self._consensus is None else {CONSENSUS: self._consensus})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._consensus, self._heard = state.tensors.get(CONSENSUS), []
