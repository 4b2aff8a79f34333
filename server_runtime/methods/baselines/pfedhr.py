"""pFedHR: the server reassembles models from all devices' layers; each device learns from the one most like its own.

Paper: Wang et al., Towards Personalized Federated Learning via Heterogeneous Model Reassembly (NeurIPS 2023).
Implemented: layers grouped by CKA; candidates of 4 to 6 layers drawn at random that cover all groups, convolutions
first, in the order of the layers' own numbers; dense stitches and a new classifier; all weights tuned on public
examples; the candidate whose logits are most like the device's own teaches it.
Left out: any limit of size, as in the paper.
Differs: grouping as in pFedClub, where K-means is exact. A dense stitch of more than two million weights is a 1×1
convolution. A teacher that does not fit into the device's memory gives way to the next best, or to none. A device's
model rests on the server between rounds.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedwright.server_runtime.blocks.pfedclub.block_search import DRAWS, Block, BlockGroups, Chain
from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import (
    Beginnings,
    agreement,
    logits_of,
    refresh_norms,
    tune,
)
from fedwright.server_runtime.blocks.pfedclub.stitching import joins
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.params.personal_models import PFedHRParams
from fedwright.server_runtime.methods.shared.teachers import (
    BoardLimits,
    Pupil,
    Teacher,
    TeacherMethod,
    candidate_of,
    teacher_of,
)
from fedwright.server_runtime.zoo.stitched import CLASSES, Stitched, assemble, classes_block, spell


class PFedHR(TeacherMethod):
    """w*_m = argmax over candidates c, the same for all m, of mean_i cos(w_m(x_i), c(x_i))."""

    name = "pfedhr"

    def __init__(self, params: PFedHRParams, setting: Setting) -> None:
        super().__init__(params.own, setting)
        self._params = params
        self.distill = params.distill

    def make_teachers(self, pupils: Mapping[str, Pupil], known: Mapping[str, BoardLimits]) -> dict[str, list[Teacher]]:
        """Candidates for all, then one choice for each device."""
        params, number = self._params, next(iter(known.values())).round
        groups = self.grouped(pupils, groups=params.groups, rows=params.rows, seed=self.seed_of("groups", number))
        chains = self._draw(groups, np.random.default_rng(self.seed_of("search", number)))
        if not chains:
            return {}
        seed = self.seed_of("stitches", number)
        modules = self._assembled(chains, pupils, seed)
        candidates = [candidate_of(module, chain) for module, chain in zip(modules, chains, strict=True)]
        for candidate in candidates:
            refresh_norms(candidate, self.public_x)
        tune(candidates, Beginnings(self.public_x), self.public_y, params.tuning(everything=True), seed=seed)
        # Anew, because all blocks have changed; every candidate has its own copies.
        logits = [logits_of(candidate, Beginnings(self.public_x)) for candidate in candidates]
        teachers = [self._teacher(module, chain) for module, chain in zip(modules, chains, strict=True)]
        return {
            device: [teachers[i] for i in np.argsort([-agreement(pupil.logits, own) for own in logits], kind="stable")]
            for device, pupil in pupils.items()
        }

    def _draw(self, groups: BlockGroups, rng: np.random.Generator) -> list[Chain]:
        """Chains of random layers, at least one of each group."""
        usable = sorted((b for b in groups.members if not b.part.head), key=lambda b: (b.owner, b.index))
        by_group = [[b for b in usable if groups.members[b] == g] for g in sorted(set(groups.members.values()))]
        by_group = [blocks for blocks in by_group if blocks]
        found: dict[Chain, None] = {}
        for _ in range(DRAWS * self._params.candidates):
            wanted = int(rng.integers(self._params.least, self._params.longest + 1))
            drawn = {blocks[rng.integers(len(blocks))] for blocks in by_group}
            while len(drawn) < min(wanted, len(usable)):
                drawn.add(usable[rng.integers(len(usable))])
            chain = tuple(sorted(drawn, key=lambda b: (b.part.flat, b.index, b.owner)))
            if self._joins(chain):
                found[chain] = None
            if len(found) == self._params.candidates:
                break
        return list(found)

    def _joins(self, chain: Chain) -> bool:
        parts = [block.part for block in chain]
        end = classes_block(parts[-1].gives, self.setting.spec.classes)[1]
        return joins([*parts, end], self.setting.spec.input_shape)

    def _assembled(self, chains: list[Chain], pupils: Mapping[str, Pupil], seed: int) -> list[Stitched]:
        spec = self.setting.spec
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = []
            for chain in chains:
                layer, end = classes_block(chain[-1].part.gives, spec.classes)
                blocks = [*(pupils[block.owner].blocks[block.index] for block in chain), layer]
                parts = [*(block.part for block in chain), end]
                made.append(assemble(blocks, parts, spec.input_shape, dense=True).to(self.setting.device))
            return made

    def _teacher(self, module: Stitched, chain: tuple[Block, ...]) -> Teacher:
        pieces = [(self.named(block.owner), block.index) for block in chain]
        name = spell([*pieces, (CLASSES, 0)], dense=True)
        return teacher_of(module, replace(self.setting.spec, model=name, sizes=()))
