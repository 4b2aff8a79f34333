"""FCCL: devices with unlike models agree on how the classes of public examples go together, and forget less.

Paper: Huang, Ye, Du, Learn from Others and Be Yourself in Heterogeneous Federated Learning (CVPR 2022).
Implemented: the cross-correlation of a device's logits with the mean logits of all on public examples, pushed to 1 for
the same class and to −1 between classes (Eqs. 2 and 3); own training with a lesson from the device's model as it came
out of that (inter-domain knowledge, Eq. 5).
Left out: the lesson from a model that was trained on own data alone (intra-domain knowledge, Eq. 6): a graph holds one
teacher.
Differs: a device's model rests on the server between rounds, as in FedMD; the common logits are those of the last
round; the teacher travels with the task.
"""

from fedwright.server_runtime.methods.base import Assignment, Emission, Setting
from fedwright.server_runtime.methods.baselines.fedmd import FedMD
from fedwright.server_runtime.methods.params.personal_models import FCCLParams, FedMDParams
from fedwright.server_runtime.spec import Objective

TEACHER = "teacher/"


class FCCL(FedMD):
    """Z ← mean_m f_m(X); min Σ_u (1 − M_uu)² + λ Σ_{u≠v} (1 + M_uv)²; then CE + ω KL(before || now) on own data."""

    name = "fccl"

    def __init__(self, params: FCCLParams, setting: Setting) -> None:
        self._given = params
        epochs, batch = params.digest_epochs, params.digest_batch
        super().__init__(FedMDParams(params.own, transfer_epochs=0, digest_epochs=epochs, digest_batch=batch), setting)

    def agreement(self) -> Objective:
        """Correlation with the common logits."""
        return Objective(cross_entropy=0.0, correlate=self._given.agree, correlate_apart=self._given.apart)

    def objective_of(self, device: str) -> Objective:
        """Own data, with the lesson of the model that it starts from."""
        if not self._given.lesson:
            return Objective()
        heat = self._given.temperature
        return Objective(distill=self._given.lesson, distill_temperature=heat, teacher=self.specs[device])

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """As FedMD; for own training also the teacher."""
        plain = super().emit(device, assignment)
        if not assignment.structure.objective.distill:
            return plain
        lesson = {TEACHER + name: value for name, value in plain.weights.items()}
        return Emission(plain.weights, lesson, public=plain.public)
