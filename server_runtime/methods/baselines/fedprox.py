"""FedProx: FedAvg whose devices are held near the global model by a proximal term.

Paper: Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020).
Implemented: the term µ/2 ||w − W_t||² over all trainable weights; µ = 0 is FedAvg bit for bit.
Left out: γ-inexact local solutions; a device's work is set by epochs.
Differs: nothing.
"""

from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams, FedProxParams
from fedwright.server_runtime.spec import Objective, Structure


class FedProx(FedAvg):
    """W ← W + Σ n_i Δ_i / Σ n_i, with w_i near argmin f_i(w) + µ/2 ||w − W||².

    A device takes the weights that it was sent as the centre W of the proximal term.
    """

    def __init__(self, params: FedProxParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._structure = Structure(setting.spec, Objective(proximal=params.mu), setting.optimizer)
