"""FedRolex: a window of channels that moves on by one every round, so that all of a large model gets trained.

Paper: Alam et al., FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction (NeurIPS 2022).
Implemented: the window {(t + j) mod C : j < ceil(r C)} of every channel group, one step per round, the same t for all;
entries averaged over the devices that held them, every device counting the same.
Left out: nothing of the method; the server model may be wider than any device (no level of size 1).
Differs: the authors' code rolls the other way round, which changes nothing. Masked loss as in HeteroFL is not used.
"""

from dataclasses import dataclass, field

from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.slicing import Plan, rolling_plan
from fedwright.server_runtime.methods.base import Entry, Setting, register
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod, Levels
from fedwright.server_runtime.spec import ModelSpec


@dataclass(frozen=True)
class FedRolexParams:
    """levels: the paper's capacities β."""

    levels: Levels = field(default_factory=Levels)


class FedRolex(LeveledMethod):
    """W_j ← W_j + mean of Δ_ij over the devices i whose window holds entry j."""

    rounding = "ceil"
    by_samples = False

    def __init__(self, params: FedRolexParams, setting: Setting) -> None:
        super().__init__(params.levels, setting)

    def marks_of(self, device: str, round_number: int) -> tuple[int, ...]:
        """Where the window begins: t = 0 in the first round."""
        return (round_number - 1,)

    def plan_of(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """The window of every group; a depth or a rank stays whole."""
        return rolling_plan(self.full, zoo.sizes_of(spec), marks[0])


register(Entry("fedrolex", "a rolling window of channels", FedRolexParams, FedRolex))
