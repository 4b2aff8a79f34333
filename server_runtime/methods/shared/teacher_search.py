"""pFedClub's search for one device's teachers: block search, tuning and choice, as a function of plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import Tensor

from fedwright.protocol.predictor import HEADROOM
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
from fedwright.server_runtime.blocks.pfedclub.stitching import Shape
from fedwright.server_runtime.methods.params.personal_models import PFedClubParams
from fedwright.server_runtime.methods.shared.teachers import Pupil, Teacher, candidate_of, teacher_of
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.stitched import Stitched, assemble, spell


@dataclass(frozen=True)
class TeacherSeconds:
    """Seconds of a round that are left for a teacher, and what is known of how long one takes.

    parameter_s: to send one of its parameters. paces: seconds per unit of work in the models of an owner.
    """

    room_s: float
    steps: int
    parameter_s: float
    paces: Mapping[str, float]

    def of(self, chain: Chain, shape: Shape) -> float:
        """What a chain's answers add to a round: an estimate, because to build each one's graph takes seconds."""
        sent_s = self.parameter_s * block_search.chain_parameters(chain, shape)
        return sent_s + self.steps * block_search.chain_seconds(chain, shape, self.paces.__getitem__)


@dataclass(frozen=True)
class Search:
    """One device's: its seeds, its free memory, what its own training takes of that, and the time that it leaves."""

    device: str
    seed: int
    tuning_seed: int
    free_bytes: int
    own_bytes: int | None
    seconds: TeacherSeconds | None


@dataclass(frozen=True)
class Club:
    """What all searches of a round read; names: of the devices' models as pieces of a stitched one."""

    pupils: Mapping[str, Pupil]
    groups: BlockGroups
    x: Tensor
    y: Tensor | None
    params: PFedClubParams
    rules: Rules
    spec: ModelSpec
    names: Mapping[str, str]


def teachers_of(search: Search, club: Club) -> list[Teacher]:
    """One block search, one pass of tuning and one choice: teachers for a device, best first."""
    pupil, params = club.pupils[search.device], club.params
    rng = np.random.default_rng(search.seed)
    allowed = allowed_chains(search, pupil.chain, params, club.spec.input_shape)
    chains = block_search.search(pupil.chain, club.groups, club.rules, allowed=allowed, most=params.most, rng=rng)
    if not chains:
        return []
    candidates = [candidate_of(_assembled(chain, club), chain) for chain in chains]
    x = club.x[: params.rows]
    fitted = match(candidates, x, lambda block: club.pupils[cast(Block, block).owner].taken(cast(Block, block), x))
    scores = [agreement(pupil.logits[: len(x)], logits) for logits in fitted]
    order = [i for i in np.argsort([-score for score in scores], kind="stable") if np.isfinite(scores[i])]
    count = len(order) if params.finalists is None else params.finalists
    best, others = order[:count], order[count:]
    begun = Beginnings(club.x)
    tune([candidates[i] for i in best], begun, club.y, params.tuning(), seed=search.tuning_seed)
    said = {i: agreement(pupil.logits, logits_of(candidates[i], begun)) for i in best}
    ranked = [*sorted((i for i in best if np.isfinite(said[i])), key=lambda i: -said[i]), *others]
    return [_teacher(candidates[i], chains[i], club) for i in ranked]


def allowed_chains(search: Search, own: Chain, params: PFedClubParams, shape: Shape) -> block_search.Constraint:
    """Hard rules first, then limits of size, memory and time."""
    constraints = [block_search.stitchable(shape)]
    if params.eta is not None:
        constraints.append(block_search.within_size(own, shape, params.eta))
    if search.own_bytes is not None:
        constraints.append(block_search.within_memory(shape, search.free_bytes, search.own_bytes, ratio=HEADROOM))
    limit = search.seconds
    if limit is not None:
        constraints.append(block_search.within_time(lambda chain: limit.of(chain, shape), limit.room_s))
    return block_search.all_of(*constraints)


def _assembled(chain: Chain, club: Club) -> Stitched:
    blocks = [club.pupils[block.owner].blocks[block.index] for block in chain]
    parts = [block.part for block in chain]
    return assemble(blocks, parts, club.spec.input_shape, shared=True).to(club.x.device)


def _teacher(candidate: Candidate, chain: Chain, club: Club) -> Teacher:
    name = spell([(club.names[block.owner], block.index) for block in chain])
    module = Stitched(list(candidate.blocks), list(candidate.stitches))
    return teacher_of(module, replace(club.spec, model=name, sizes=()))
