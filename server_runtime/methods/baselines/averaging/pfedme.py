"""pFedMe: personal models near a common one, which follows the envelope of the devices' losses.

Paper: T. Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes (NeurIPS 2020).
Implemented: Algorithm 1: K steps towards θ̃ = argmin f(θ) + λ/2 ||θ − w||², w ← w − η λ (w − θ̃), R times; the server
goes β of the way to the mean, in which every device counts the same.
Left out: an accuracy δ of the inner problem; it always takes K steps.
Differs: every one of the K steps sees a batch of its own, and θ begins at w; a device takes whole groups of K steps,
which are plain SGD. The model of a device is the common w; its θ is what own training makes of that (`own training` in
benchmarks).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Assignment, Setting, Tensors
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.averaging import PFedMeParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.methods.shared.recipes import in_groups
from fedwright.server_runtime.spec import Objective, Structure


class PFedMe(FedAvg):
    """W ← (1 − β) W + β mean(w_i)."""

    by_samples = False

    def __init__(self, params: PFedMeParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._params = params
        objective = Objective(envelope=params.strength, envelope_steps=params.inner_steps, envelope_rate=params.rate)
        self._structure = Structure(setting.spec, objective, setting.optimizer)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """As FedAvg, in groups of K steps."""
        found = super().assign(reports, round_number)
        return {
            device: replace(one, recipe=in_groups(one.recipe, reports[device].data.samples, self._params.inner_steps))
            for device, one in found.items()
        }

    def server_step(self, change: Tensors) -> Tensors:
        """β times the mean change."""
        return {name: np.float32(self._params.mixing) * step for name, step in change.items()}
