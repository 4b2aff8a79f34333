"""FedConv's control: the first channels of every layer, trained on the server for as many epochs as FedConv tunes.

Paper: none; HeteroFL's slices with the server's help that FedConv has, which shows how much of a gain is only that.
Implemented: the same pre-training; every slice trained on the server's examples for FedConv's epochs of compression and
at its rate; changes averaged where they belong, by samples; then the global model trained for FedConv's epochs of
dilation and weighing, at the rate of pre-training.
Settings that count: `levels`, `pretrain_epochs`, `compress_epochs`, `again_epochs`, the sum of `dilate_epochs` and
`weigh_epochs`, `server_batch`, `server_rate` for whole models, `kernel_rate` for slices, and `holdout`. `transfer`
is refused; the others of FedConv change nothing here.
Left out: whatever FedConv does besides: kernels, weights of the sum, personal layers.
Differs: nothing to differ from.
"""

from dataclasses import replace

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.slicing import prefix_plan, take
from fedwright.server_runtime.methods.base import MethodState, Setting, Tensors
from fedwright.server_runtime.methods.fedconv.method import FedConv
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.fedconv.server_training import DilatedUpdate
from fedwright.server_runtime.spec import ModelSpec

SLICE = "slice/"


class SliceTuned(FedConv):
    """w_r = train(slice_r(W)); W ← train(W + mean of Δ_j where a device holds the entry)."""

    def __init__(self, params: FedConvParams, setting: Setting) -> None:
        if params.transfer:
            raise ConfigError("slice-tuned has no transfer: its slices learn the devices' own classes; leave it out")
        super().__init__(replace(params, exchange=False), setting)
        self._slices: list[Tensors] = []

    def _tune_compression(self, epochs: int) -> None:
        """Cut the global model and train every slice."""
        self._slices = [self._trained_slice(spec, epochs) for spec in self._server.specs]
        self._sent.clear()

    def _trained_slice(self, spec: ModelSpec, epochs: int) -> Tensors:
        cut = take(self.weights, self.axes, prefix_plan(self.full, zoo.sizes_of(spec)))
        # Slices stand where FedConv tunes kernels, so they learn at that rate.
        made = self._server.improved(cut, spec, epochs, f"slice {self.advanced}", rate=self._params.kernel_rate)
        self._tuned = max([self._tuned, *(float(np.abs(value - cut[name]).max()) for name, value in made.items())])
        return made

    def compressed(self, spec: ModelSpec) -> Tensors:
        """The trained slice of a ratio."""
        return self._slices[self._server.specs.index(spec)]

    def _learn(self, parts: dict[str, DilatedUpdate]) -> None:
        mean = self._new_mean()
        for _, own in sorted(parts.items()):
            mean.add(dict(own.change), prefix_plan(self.full, zoo.sizes_of(own.spec)), own.samples)
        change = mean.result()
        moved = {name: (value + change[name]).astype(value.dtype) for name, value in self.weights.items()}
        epochs = self._params.dilate_epochs + self._params.weigh_epochs
        self.weights = self._server.improved(moved, self.setting.spec, epochs, f"whole {self.advanced}")
        self._tune_compression(self._params.again_epochs)

    def state(self) -> MethodState:
        """Also the slices."""
        slices = {f"{SLICE}{n}/{name}": value for n, own in enumerate(self._slices) for name, value in own.items()}
        return super().state() | MethodState(slices)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        self._slices = []
        if self._ready:
            self._slices = [state.below(f"{SLICE}{number}/") for number in range(len(self._server.specs))]
