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

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from fedwright.protocol.predictor import HEADROOM, need_bytes
from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.blocks.budget import FORWARD_RATIO
from fedwright.server_runtime.blocks.pfedclub import block_search
from fedwright.server_runtime.blocks.pfedclub.block_search import Block, BlockGroups, Chain, Rules
from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import (
    Beginnings,
    Candidate,
    agreement,
    logits_of,
    match,
    tune,
)
from fedwright.server_runtime.blocks.pfedclub.stitching import part_work
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.params.personal_models import PFedClubParams
from fedwright.server_runtime.methods.shared.teachers import (
    BoardLimits,
    Pupil,
    Teacher,
    TeacherMethod,
    candidate_of,
    teacher_of,
)
from fedwright.server_runtime.spec import Structure
from fedwright.server_runtime.zoo.stitched import Stitched, assemble, spell


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
        return {
            device: self._teachers(pupils[device], pupils, groups, known[device])
            for device in counted(list(pupils), "tuning teachers")
        }

    def _teachers(
        self, pupil: Pupil, pupils: Mapping[str, Pupil], groups: BlockGroups, known: BoardLimits
    ) -> list[Teacher]:
        rng = np.random.default_rng(self.seed_of("search", known.round, pupil.device))
        allowed = self._allowed(pupil, pupils, known)
        chains = block_search.search(pupil.chain, groups, self._rules, allowed=allowed, most=self._params.most, rng=rng)
        if not chains:
            return []
        candidates = [candidate_of(self._assembled(chain, pupils), chain) for chain in chains]
        x = self.public_x[: self._params.rows]
        fitted = match(candidates, x, lambda block: pupils[cast(Block, block).owner].taken(cast(Block, block), x))
        scores = [agreement(pupil.logits[: len(x)], logits) for logits in fitted]
        order = [i for i in np.argsort([-score for score in scores], kind="stable") if np.isfinite(scores[i])]
        count = len(order) if self._params.finalists is None else self._params.finalists
        best, others = order[:count], order[count:]
        seed, begun = self.seed_of("stitches", known.round, pupil.device), Beginnings(self.public_x)
        tune([candidates[i] for i in best], begun, self.public_y, self._params.tuning(), seed=seed)
        said = {i: agreement(pupil.logits, logits_of(candidates[i], begun)) for i in best}
        ranked = [*sorted((i for i in best if np.isfinite(said[i])), key=lambda i: -said[i]), *others]
        return [self._teacher(candidates[i], chains[i]) for i in ranked]

    def _allowed(self, pupil: Pupil, pupils: Mapping[str, Pupil], known: BoardLimits) -> block_search.Constraint:
        """Hard rules first, then limits of size, memory and time."""
        shape, spec = self.setting.spec.input_shape, self.specs[pupil.device]
        constraints = [block_search.stitchable(shape)]
        if self._params.eta is not None:
            constraints.append(block_search.within_size(pupil.chain, shape, self._params.eta))
        if self.setting.manifest is not None:
            alone = self.setting.manifest(Structure(spec, optimizer=self.setting.optimizer))
            own_bytes = need_bytes(alone, self.setting.batch)
            constraints.append(block_search.within_memory(shape, known.free_bytes, own_bytes, ratio=HEADROOM))
        room_s = self.room_s(pupil.device)
        if room_s is not None:
            seconds = self._teacher_seconds(pupil.device, pupils)
            constraints.append(block_search.within_time(seconds, room_s))
        return block_search.all_of(*constraints)

    def _teacher_seconds(self, device: str, pupils: Mapping[str, Pupil]) -> Callable[[Chain], float]:
        """What a chain's answers add to a device's round: an estimate, because to build each one's graph takes seconds.

        The graph of the teacher that is chosen is built anyway, and checked.
        """
        shape, steps, paces = self.setting.spec.input_shape, self.steps_of(device), dict[str, float]()

        def pace(owner: str) -> float:
            if owner not in paces:
                work = sum(part_work(block.part) for block in pupils[owner].chain)
                paces[owner] = FORWARD_RATIO * self.step_s(device, self.specs[owner]) / max(1, work)
            return paces[owner]

        rate = None if self.setting.forecasts is None else self.setting.forecasts.bytes_per_s(device)
        parameter_s = 4 / rate if rate else 0.0

        def seconds(chain: Chain) -> float:
            sent_s = parameter_s * block_search.chain_parameters(chain, shape)
            return sent_s + steps * block_search.chain_seconds(chain, shape, pace)

        return seconds

    def _assembled(self, chain: Chain, pupils: Mapping[str, Pupil]) -> Stitched:
        blocks = [pupils[block.owner].blocks[block.index] for block in chain]
        parts = [block.part for block in chain]
        return assemble(blocks, parts, self.setting.spec.input_shape, shared=True).to(self.setting.device)

    def _teacher(self, candidate: Candidate, chain: Chain) -> Teacher:
        name = spell([(self.named(block.owner), block.index) for block in chain])
        module = Stitched(list(candidate.blocks), list(candidate.stitches))
        return teacher_of(module, replace(self.setting.spec, model=name, sizes=()))
