"""FedProx: FedAvg whose devices are held near the global model by a proximal term.

Paper: Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020).
Implemented: the term µ/2 ||w − W_t||² over all trainable weights; µ = 0 is FedAvg bit for bit.
Left out: γ-inexact local solutions; a device's work is set by epochs.
Differs: nothing.
"""

from dataclasses import dataclass, field

from fedwright.protocol.support.settings import check_range
from fedwright.server_runtime.methods.base import Entry, Setting, register
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg, FedAvgParams
from fedwright.server_runtime.spec import Objective, Structure


@dataclass(frozen=True)
class FedProxParams:
    """mu: the paper's µ."""

    mu: float = field(default=0.01, metadata={"help": "weight of the proximal term; 0 is FedAvg"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("mu", self.mu, low=0)


class FedProx(FedAvg):
    """W ← W + Σ n_i Δ_i / Σ n_i, with w_i near argmin f_i(w) + µ/2 ||w − W||².

    A device takes the weights that it was sent as the centre W of the proximal term.
    """

    def __init__(self, params: FedProxParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._structure = Structure(setting.spec, Objective(proximal=params.mu), setting.optimizer)


register(Entry("fedprox", "FedAvg with devices held near the global model", FedProxParams, FedProx))
