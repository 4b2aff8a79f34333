"""pFedClub: devices keep their own architectures; the server builds each a teacher of its own size from others' blocks.

Paper: Wang, Yang, Cui, Ma, pFedClub: Controllable Heterogeneous Model Aggregation for Personalized Federated Learning
(NeurIPS 2024).
Implemented: blocks; linear CKA of inputs and outputs; K-means; CMSR with anchor, order-constrained search and
completion; the size limit of pFedClub+ (eta); stitches alone tuned, with labels or (NT-Xent) without; selection by the
cosine of logits; CE + λ KL(teacher ‖ student) on the device; ablations: anchor "similar" and "first", order "none",
completion false.
Left out: recurrent nets are kept whole, as in the paper, and so is a module whose graph has no place that one tensor
passes; they lend nothing, get no teacher, and a notice says so.
Differs: K-means in an embedding in which it is exact. At most `most` candidates, drawn one at a time. Stitches are 1×1
convolutions over fitted maps instead of dense layers, and count for the size limit. They begin at the least-squares map
to what their block took in its own model instead of at random; `finalists` tunes only those that are then most like the
device's own model. A head stands at the end and only there, the device's own unless `head` is "any", because
that of a device with other classes knows nothing of this one's; no convolution follows a linear layer. Running
statistics are taken anew from public examples. A teacher that does not fit into the device's budget beside its model
gives way to the next best, or to none; the search already keeps to what is known of its memory and, by an estimate, of
its seconds per round. The order may also be that of relative depth. A device's model rests on the server between
rounds.
"""

from collections.abc import Mapping

from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.blocks.budget import FORWARD_RATIO
from fedwright.server_runtime.blocks.pfedclub.block_search import Rules
from fedwright.server_runtime.blocks.pfedclub.stitching import part_work
from fedwright.server_runtime.engine.spread import spread
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.params.personal_models import PFedClubParams
from fedwright.server_runtime.methods.shared.teacher_search import Club, Search, TeacherSeconds, teachers_of
from fedwright.server_runtime.methods.shared.teachers import BoardLimits, Pupil, Teacher, TeacherMethod
from fedwright.server_runtime.spec import Structure


class PFedClub(TeacherMethod):
    """w*_m = argmax over tuned candidates c of mean_i cos(w_m(x_i), c(x_i))."""

    name = "pfedclub"

    def __init__(self, params: PFedClubParams, setting: Setting) -> None:
        super().__init__(params.own, setting)
        self._params = params
        self.distill = params.distill
        self._rules = Rules(params.order, params.anchor, params.completion, params.head)

    def make_teachers(self, pupils: Mapping[str, Pupil], known: Mapping[str, BoardLimits]) -> dict[str, list[Teacher]]:
        """One block_search, one pass of tuning and one choice for each device."""
        number = next(iter(known.values())).round
        groups = self.grouped(
            pupils, groups=self._params.groups, rows=self._params.rows, seed=self.seed_of("groups", number)
        )
        names = {device: self.named(device) for device in pupils}
        club = Club(pupils, groups, self.public_x, self.public_y, self._params, self._rules, self.setting.spec, names)
        limits = [self._limits(pupil, pupils, known[device]) for device, pupil in pupils.items()]
        made = spread(self.setting.engine, teachers_of, limits, club, work="tuning teachers")
        return dict(zip(pupils, made, strict=True))

    def _limits(self, pupil: Pupil, pupils: Mapping[str, Pupil], known: BoardLimits) -> Search:
        """What is known of a device's memory and time, as numbers."""
        device, spec, seconds = pupil.device, self.specs[pupil.device], None
        own_bytes = None
        if self.setting.manifest is not None:
            alone = self.setting.manifest(Structure(spec, optimizer=self.setting.optimizer))
            own_bytes = need_bytes(alone, self.setting.batch)
        room_s = self.room_s(device)
        if room_s is not None:
            seconds = self._teacher_seconds(device, pupils, room_s)
        seeds = {what: self.seed_of(what, known.round, device) for what in ("search", "stitches")}
        return Search(device, seeds["search"], seeds["stitches"], known.free_bytes, own_bytes, seconds)

    def _teacher_seconds(self, device: str, pupils: Mapping[str, Pupil], room_s: float) -> TeacherSeconds:
        """What is left of a device's round for a teacher, and how fast others' models are there.

        The graph of the teacher that is chosen is built anyway, and checked.
        """
        work = {owner: sum(part_work(block.part) for block in pupil.chain) for owner, pupil in pupils.items()}
        paces = {
            owner: FORWARD_RATIO * self.step_s(device, self.specs[owner]) / max(1, work[owner]) for owner in pupils
        }
        rate = None if self.setting.forecasts is None else self.setting.forecasts.bytes_per_s(device)
        return TeacherSeconds(room_s, self.steps_of(device), 4 / rate if rate else 0.0, paces)
