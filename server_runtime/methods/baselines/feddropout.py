"""Federated Dropout: every device trains a random subset of the channels, drawn anew each round.

Paper: Caldas et al., Expanding the Reach of Federated Learning by Reducing Client Resource Requirements (2018).
Implemented: one random subset per channel group, device and round; entries averaged over the devices that held them,
weighted by samples.
Left out: lossy compression of what is sent (the run's own codecs do that); 1/r scaling of activations.
Differs: devices may have different sizes, where the paper gives all the same; one subset per group keeps residual sums
aligned.
"""

from dataclasses import dataclass, field

import numpy as np

from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.slicing import Plan, random_plan
from fedwright.server_runtime.methods.base import Entry, Setting, register
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod, Levels
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec


@dataclass(frozen=True)
class FedDropoutParams:
    """levels: the share of channels that is kept."""

    levels: Levels = field(default_factory=lambda: Levels(sizes=(0.75,)))


class FedDropout(LeveledMethod):
    """W_j ← W_j + Σ n_i Δ_ij / Σ n_i over the devices i that drew entry j."""

    def __init__(self, params: FedDropoutParams, setting: Setting) -> None:
        super().__init__(params.levels, setting)

    def marks_of(self, device: str, round_number: int) -> tuple[int, ...]:
        """The seed of this device's subset in this round."""
        return (derive_seed(self.setting.seed, "subset", round_number, device),)

    def plan_of(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Plan:
        """The subset of every group."""
        return random_plan(self.full, zoo.sizes_of(spec), np.random.default_rng(marks[0]))


register(Entry("feddropout", "a random subset of channels, anew each round", FedDropoutParams, FedDropout))
