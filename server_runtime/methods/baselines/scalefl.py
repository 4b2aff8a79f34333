"""ScaleFL: submodels that are narrower and shallower at once, with a classifier at every depth that teach each other.

Paper: Ilhan, Su, Liu, ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients (CVPR 2023).
Implemented: levels of width and depth (first exits); the loss Σ j L_j / (1 + … + l); self-distillation from the last
exit with temperature T after a number of rounds; entries averaged over the devices that held them, all counting
the same.
Left out: the train-time scaler (the model is group-normalised, where it has no effect); the search for level splits.
Differs: exits are pooled linear classifiers of `cnn-exits` instead of three convolutions each; distillation begins at a
round number, where the paper says after a quarter of all rounds. Tasks without single classes have no distillation.
"""

from dataclasses import replace

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import CLASSIFY
from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.params.submodels import Levels, ScaleFLParams
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod
from fedwright.server_runtime.spec import ModelSpec, Objective

EXITS = "exits"


class ScaleFL(LeveledMethod):
    """W_j ← W_j + mean of Δ_ij over the devices i that hold entry j."""

    by_samples = False

    def __init__(self, params: ScaleFLParams, setting: Setting) -> None:
        self._params = params
        if EXITS not in zoo.full_sizes(setting.spec):
            raise ConfigError(
                f"scalefl needs a model of the zoo with exits but {setting.spec.model} has none; use cnn-exits, or"
                " heterofl, which cuts widths alone"
            )
        super().__init__(Levels(params.widths), setting)

    def make_specs(self) -> list[ModelSpec]:
        """Depth first, then width."""
        depth = zoo.full_sizes(self.setting.spec)[EXITS]
        specs = []
        for width, exits in zip(self._params.widths, self._params.exits, strict=True):
            if not 1 <= exits <= depth:
                raise ConfigError(f"level with {exits} exits: {self.setting.spec.model} has 1 to {depth}")
            shallow = self.setting.spec if exits == depth else replace(self.setting.spec, sizes=((EXITS, exits),))
            specs.append(zoo.scaled(shallow, width))
        return specs

    def objective_of(self, spec: ModelSpec, round_number: int) -> Objective:
        """The exits' losses; with one exit plain cross-entropy."""
        if zoo.sizes_of(spec)[EXITS] == 1:
            return Objective()
        teaches = self.setting.spec.goal == CLASSIFY and round_number > self._params.distill_after
        return Objective(
            exits=True,
            exit_distill=self._params.distill if teaches else 0.0,
            exit_temperature=self._params.temperature,
        )
