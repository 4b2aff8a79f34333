"""FedAvg whose devices use only the outputs of classes that they hold: the plain control for personal models.

Paper: none reports it; it is the honest bar for methods that learn which classes a device has, such as HyperFLoRA.
Implemented: FedAvg; a device's model is the global one whose logits of classes it lacks are out of reach.
Left out: nothing.
Differs: training is FedAvg's own; the mask is applied only to the model that a device uses.
"""

from collections.abc import Mapping

from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Assignment, MethodState, Setting, Tensors
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams, MaskedParams
from fedwright.server_runtime.methods.shared.generated_models import Descriptions, indicator_of, mask_logits
from fedwright.server_runtime.spec import ModelSpec


class Masked(FedAvg):
    """argmax over the classes that the device holds."""

    def __init__(self, params: MaskedParams, setting: Setting) -> None:
        super().__init__(FedAvgParams(), setting)
        self._known = Descriptions()

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in which classes every device holds."""
        self._known.meet(reports, lambda device: indicator_of(reports[device], self._setting.spec.classes))

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """As FedAvg."""
        self.meet(reports)
        return super().assign(reports, round_number)

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The global model with masked logits; without a mask for devices that are not known."""
        spec, weights = super().model_of(device)
        row = self._known.rows.get(device)
        return spec, weights if row is None else weights | mask_logits(spec, weights, row)

    def state(self) -> MethodState:
        """The global weights and the classes of devices."""
        return super().state() | self._known.state()

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._known.restore(state)
        super().restore(state)
