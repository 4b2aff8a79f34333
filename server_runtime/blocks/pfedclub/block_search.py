"""CMSR: which blocks of others may stand where a model's own stand (controllable model searching and reproduction).

1 anchor: one block of the group of the own first one. 2 order-constrained search: C[r] = blocks of the group of the own
r-th block that come after q, the least place in C[r-1]; it stops where there is none. 3 completion: own blocks for the
rest.
A candidate is a chain with one block of each C[r], their places strictly increasing. Chains are drawn one at a time.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedwright.server_runtime.blocks.pfedclub.stitching import (
    BlockShape,
    Shape,
    joins,
    part_work,
    stitch_work,
    total_parameters,
)

# Draws for each candidate that is wanted before a search is given up.
DRAWS = 30


@dataclass(frozen=True)
class Block:
    """Block number `index` (from 0) of the `count` blocks of an owner's model."""

    owner: str
    index: int
    count: int
    part: BlockShape


Chain = tuple[Block, ...]
Constraint = Callable[[Chain], bool]
"""Whether a chain may be used."""


@dataclass(frozen=True)
class Rules:
    """order: compare places by number or by number / count; `none` is the ablation. completion: own blocks at the end.

    anchor: at random, or (ablations) the most similar block or that of the least place. head: the model's own, or any
    of its group; that of a device with other classes knows nothing of this one's.
    """

    order: Literal["raw", "relative", "none"] = "raw"
    anchor: Literal["random", "similar", "first"] = "random"
    completion: bool = True
    head: Literal["own", "any"] = "own"

    def place(self, block: Block) -> float:
        """What is compared."""
        return (block.index + 1) / block.count if self.order == "relative" else float(block.index + 1)


@dataclass(frozen=True)
class BlockGroups:
    """The blocks of every group, and how alike any two are."""

    members: Mapping[Block, int]
    similar: Callable[[Block, Block], float]

    def mates(self, block: Block) -> list[Block]:
        """All blocks of the same group, in a fixed order."""
        own = self.members[block]
        return sorted((b for b, g in self.members.items() if g == own), key=lambda b: (b.index, b.owner))


def search(
    own: Chain, groups: BlockGroups, rules: Rules, *, allowed: Constraint, most: int, rng: np.random.Generator
) -> list[Chain]:
    """Up to `most` different chains for a model that are allowed; with fewer substitutions where none is, else none."""
    if len(own) < 2:
        return []
    choices = substitutions(own, groups, rules, rng)
    for depth in range(len(choices), 0, -1):
        found: dict[Chain, None] = {}
        chains = draw(choices[:depth], rules, rng)
        for chain in _take(chains, DRAWS * most):
            whole = completed(chain, own, rules)
            if whole not in found and whole != own and allowed(whole):
                found[whole] = None
            if len(found) == most:
                break
        if found:
            return list(found)
    return []


def substitutions(own: Chain, groups: BlockGroups, rules: Rules, rng: np.random.Generator) -> list[list[Block]]:
    """C[1 … r*]: a head only ever stands for a head."""
    first = _anchor(own[0], groups, rules, rng)
    choices, least = [[first]], rules.place(first)
    for block in own[1:-1] if rules.head == "own" else own[1:]:
        mates = [mate for mate in groups.mates(block) if mate.part.head == block.part.head]
        later = mates if rules.order == "none" else [mate for mate in mates if rules.place(mate) > least]
        if not later:
            break
        choices.append(later)
        least = min(rules.place(mate) for mate in later)
    return choices


def _anchor(first: Block, groups: BlockGroups, rules: Rules, rng: np.random.Generator) -> Block:
    mates = [mate for mate in groups.mates(first) if not mate.part.head]
    if rules.anchor == "random":
        return mates[rng.integers(len(mates))]
    if rules.anchor == "first":
        return mates[0]
    others = [mate for mate in mates if mate != first] or [first]
    return max(others, key=lambda mate: groups.similar(first, mate))


def draw(choices: Sequence[Sequence[Block]], rules: Rules, rng: np.random.Generator) -> Iterator[Chain]:
    """Chains at random, without end; one after another, so that their product is never made."""
    open_ends = [sorted(options, key=rules.place) for options in _open(choices, rules)]
    if not all(open_ends):
        return
    places = [[rules.place(block) for block in options] for options in open_ends]
    while True:
        chain: list[Block] = []
        for options, known in zip(open_ends, places, strict=True):
            first = bisect_right(known, rules.place(chain[-1])) if chain and rules.order != "none" else 0
            chain.append(options[rng.integers(first, len(options))])
        yield tuple(chain)


def _open(choices: Sequence[Sequence[Block]], rules: Rules) -> Iterator[list[Block]]:
    """The blocks from which a chain can reach the end: their place is before the last place of those that follow."""
    latest, kept = float("inf"), []
    for options in reversed(choices):
        usable = list(options) if rules.order == "none" else [b for b in options if rules.place(b) < latest]
        latest = max((rules.place(block) for block in usable), default=-1.0)
        kept.append(usable)
    return reversed(kept)


def completed(chain: Chain, own: Chain, rules: Rules) -> Chain:
    """The chain with the model's own rest, and always with a head."""
    if len(chain) == len(own):
        return chain
    return chain + (own[len(chain) :] if rules.completion else own[-1:])


def _take(chains: Iterator[Chain], count: int) -> Iterator[Chain]:
    for _, chain in zip(range(count), chains, strict=False):
        yield chain


def all_of(*constraints: Constraint) -> Constraint:
    """A chain must pass all, cheapest first."""
    return lambda chain: all(constraint(chain) for constraint in constraints)


def stitchable(source: Shape) -> Constraint:
    """The hard rules: a head at the end and nowhere else, no vector before a convolution, no map without places."""
    return lambda chain: joins([block.part for block in chain], source)


def chain_parameters(chain: Chain, source: Shape) -> int:
    """Parameters of all blocks and stitches."""
    return total_parameters([block.part for block in chain], source)


def within_size(own: Chain, source: Shape, eta: float) -> Constraint:
    """|w*| <= (1 + eta) |w_m|, stitches counted."""
    limit = (1.0 + eta) * chain_parameters(own, source)
    return lambda chain: chain_parameters(chain, source) <= limit


def within_memory(source: Shape, free_bytes: int, student_bytes: int, *, ratio: float) -> Constraint:
    """The student in training and the teacher's weights beside it, times `ratio`, in what is free."""
    room = free_bytes - student_bytes
    return lambda chain: ratio * 4 * chain_parameters(chain, source) <= room


def within_time(seconds: Callable[[Chain], float], room_s: float) -> Constraint:
    """What the teacher adds to a round, in the seconds that the student's own training leaves."""
    return lambda chain: seconds(chain) <= room_s


def chain_seconds(chain: Chain, source: Shape, pace: Callable[[str], float]) -> float:
    """Seconds of a chain's answers to one batch; pace: seconds per unit of work in the models of an owner.

    Blocks run as fast as where they come from, stitches as fast as the block behind them.
    """
    gives = [source, *(block.part.gives for block in chain[:-1])]
    return sum(
        pace(block.owner) * (part_work(block.part) + stitch_work(before, block.part))
        for before, block in zip(gives, chain, strict=True)
    )
