"""Per-FedAvg: a common start from which one step on its own data brings each device far.

Paper: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees (NeurIPS 2020).
Implemented: Algorithm 1, first order (Per-FedAvg (FO)): w̃ = w − α ∇f(w, D), w ← w − β ∇f(w̃, D'), with D and D' the next
two batches; every device counts the same.
Left out: the Hessian and its estimate by differences (HF).
Differs: a device takes an even number of steps, one more where its data would give an odd one; steps are plain SGD.
The model of a device is the common start; the step on its own data is the device's (`own training` in benchmarks).
"""

from collections.abc import Mapping
from dataclasses import replace

from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Assignment, Setting
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.averaging import PerFedAvgParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.methods.shared.recipes import in_groups
from fedwright.server_runtime.spec import Objective, Structure


class PerFedAvg(FedAvg):
    """min_w Σ_i f_i(w − α ∇f_i(w))."""

    by_samples = False

    def __init__(self, params: PerFedAvgParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._structure = Structure(setting.spec, Objective(meta_rate=params.inner_rate), setting.optimizer)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """As FedAvg, in pairs of steps."""
        found = super().assign(reports, round_number)
        return {
            device: replace(one, recipe=in_groups(one.recipe, reports[device].data.samples, 2))
            for device, one in found.items()
        }
