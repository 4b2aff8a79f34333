"""CMSR on blocks that are small enough to be searched by hand."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedwright.server_runtime.blocks.pfedclub import block_search
from fedwright.server_runtime.blocks.pfedclub.block_search import Block, BlockGroups, Rules
from fedwright.server_runtime.blocks.pfedclub.stitching import BlockShape

PLAIN = Rules()


def anything(chain: tuple[Block, ...]) -> bool:
    return True


def part(*, head: bool = False) -> BlockShape:
    return BlockShape((4,), (4,), flat=True, head=head, parameters=20)


def model(owner: str, count: int) -> tuple[Block, ...]:
    return tuple(Block(owner, i, count, part(head=i == count - 1)) for i in range(count))


def grouped(*labelled: tuple[tuple[Block, ...], list[int]]) -> BlockGroups:
    members = {block: label for blocks, labels in labelled for block, label in zip(blocks, labels, strict=True)}
    return BlockGroups(members, lambda one, other: -abs(one.index - other.index))


@pytest.fixture
def fleet() -> tuple[tuple[Block, ...], BlockGroups]:
    """Three models of 3, 4 and 5 blocks; group 0 first blocks, 1 the middle, 2 heads."""
    own, four, five = model("a", 3), model("b", 4), model("c", 5)
    return own, grouped((own, [0, 1, 2]), (four, [0, 1, 1, 2]), (five, [0, 0, 1, 1, 2]))


def found(
    own: tuple[Block, ...],
    groups: BlockGroups,
    rules: Rules = PLAIN,
    *,
    allowed: Callable[..., Any] = anything,
    most: int = 50,
    seed: int = 0,
) -> list[tuple[Block, ...]]:
    return block_search.search(own, groups, rules, allowed=allowed, most=most, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(5))
def test_blocks_keep_their_order_and_their_groups(fleet: tuple[tuple[Block, ...], BlockGroups], seed: int) -> None:
    own, groups = fleet
    chains = found(own, groups, seed=seed)
    assert chains
    assert len(set(chains)) == len(chains)
    for chain in chains:
        assert [groups.members[block] for block in chain] == [0, 1, 2]
        assert chain[0].index < chain[1].index
        assert chain[-1].part.head
        assert chain[0] == chains[0][0], "one anchor for all candidates"


def test_the_search_ends_where_no_later_block_is_left_and_own_blocks_follow() -> None:
    own, other = model("a", 4), model("b", 4)
    # the anchor is b's third block: nothing of group 1 comes later
    groups = grouped((own, [5, 1, 1, 2]), (other, [9, 1, 5, 2]))
    chains = [chain for seed in range(6) for chain in found(own, groups, seed=seed)]
    late = [chain for chain in chains if chain[0] == other[2]]
    assert late
    assert all(chain[1:] == own[1:] for chain in late)
    bare = found(own, groups, Rules(completion=False, anchor="similar"))
    assert bare == [(other[2], own[3])], "without completion only the head is kept"


def test_order_by_relative_depth_lets_every_head_stand_for_a_head() -> None:
    own, deep = model("a", 2), model("b", 8)
    groups = grouped((own, [0, 1]), (deep, [7, 7, 7, 0, 7, 7, 7, 1]))
    raw = {chain for seed in range(8) for chain in found(own, groups, Rules(head="any"), seed=seed)}
    relative = {
        chain for seed in range(8) for chain in found(own, groups, Rules(order="relative", head="any"), seed=seed)
    }
    assert {chain[-1].owner for chain in raw if chain[0].owner == "b"} == {"b"}
    assert {chain[-1].owner for chain in relative if chain[0].owner == "b"} == {"a", "b"}


def test_a_model_keeps_its_own_head_unless_any_will_do(fleet: tuple[tuple[Block, ...], BlockGroups]) -> None:
    own, groups = fleet
    assert {chain[-1] for seed in range(4) for chain in found(own, groups, seed=seed)} == {own[-1]}
    free = {chain[-1].owner for seed in range(4) for chain in found(own, groups, Rules(head="any"), seed=seed)}
    assert free - {"a"}


def test_anchors_of_the_ablations(fleet: tuple[tuple[Block, ...], BlockGroups]) -> None:
    own, groups = fleet
    assert {chain[0] for chain in found(own, groups, Rules(anchor="first"))} == {own[0]}
    assert {chain[0].owner for chain in found(own, groups, Rules(anchor="similar"))} <= {"b", "c"}


def test_without_order_earlier_blocks_may_follow() -> None:
    own, other = model("a", 3), model("b", 6)
    groups = grouped((own, [0, 1, 2]), (other, [1, 1, 1, 1, 0, 2]))
    chains = [chain for seed in range(4) for chain in found(own, groups, Rules(order="none"), seed=seed)]
    assert any(one.index >= other_.index for chain in chains for one, other_ in pairwise(chain))


def test_a_model_with_one_block_gets_nothing() -> None:
    own = model("a", 1)
    assert found(own, grouped((own, [0]))) == []


def test_groups_of_one_leave_the_model_as_it_is() -> None:
    own, other = model("a", 3), model("b", 3)
    assert found(own, grouped((own, [0, 1, 2]), (other, [3, 4, 5]))) == []


def test_fewer_substitutions_are_tried_when_none_is_allowed(
    fleet: tuple[tuple[Block, ...], BlockGroups],
) -> None:
    own, groups = fleet

    def allowed(chain: tuple[Block, Block, Block]) -> bool:
        return chain[1:] == own[1:]

    chains = [chain for seed in range(6) for chain in found(own, groups, allowed=allowed, seed=seed)]
    assert chains
    assert all(chain[0] != own[0] and chain[1:] == own[1:] for chain in chains)
    assert found(own, groups, allowed=lambda chain: False) == []


def test_the_product_of_all_choices_is_never_made() -> None:
    # 40 owners of 30 blocks: more chains than atoms
    models = [model(f"m{n:02}", 30) for n in range(40)]
    groups = grouped(*[(blocks, [0] * 29 + [1]) for blocks in models])
    seen = 0

    def allowed(chain: tuple[Block, ...]) -> bool:
        nonlocal seen
        seen += 1
        return True

    assert len(found(models[0], groups, allowed=allowed, most=8)) == 8
    assert seen <= 8 * block_search.DRAWS


def test_the_size_limit_counts_stitches() -> None:
    own = model("a", 2)
    wide = Block("b", 0, 2, BlockShape((6,), (6,), flat=True, head=False, parameters=20))
    # 4 → 6 → 4: two stitches of 4·6 + 6 and 6·4 + 4
    chain = (wide, own[1])
    assert block_search.chain_parameters(chain, (4,)) == 40 + 30 + 28
    assert not block_search.within_size(own, (4,), 1.4)(chain)
    assert block_search.within_size(own, (4,), 1.45)(chain)


def test_memory_holds_the_student_and_the_teacher() -> None:
    own = model("a", 2)
    assert block_search.within_memory((4,), 1160, 1000, ratio=1.0)(own)
    assert not block_search.within_memory((4,), 1159, 1000, ratio=1.0)(own)


@pytest.mark.parametrize(
    ("room_s", "owners"),
    [(450, ["cca", "caa"]), (300, ["caa"]), (100, [])],
    ids=["room for all", "the longest is too slow", "room for none"],
)
def test_a_quicker_chain_is_found_where_the_longest_is_too_slow(room_s: int, owners: list[str]) -> None:
    own, slow = model("a", 3), model("c", 3)
    groups = grouped((own, [0, 1, 2]), (slow, [0, 1, 2]))
    paces = {"a": 1.0, "c": 10.0}
    # every block has 20 parameters and one place: 20 s of a's, 200 s of c's
    limit = block_search.within_time(lambda chain: block_search.chain_seconds(chain, (4,), paces.__getitem__), room_s)
    chains = found(
        own, groups, Rules(anchor="similar"), allowed=block_search.all_of(block_search.stitchable((4,)), limit)
    )
    assert sorted("".join(block.owner for block in chain) for chain in chains) == sorted(owners)


def test_stitches_take_their_time_at_every_place() -> None:
    first, wide = BlockShape((1, 4, 4), (2, 4, 4), flat=False, head=False, parameters=20), part(head=True)
    other = BlockShape((3, 2, 2), (4,), flat=False, head=False, parameters=10)
    chain = tuple(Block("a", i, 3, one) for i, one in enumerate((first, other, wide)))
    # 20 parameters at 16 places, a 1x1 stitch of (2 + 1) * 3 and 10 parameters at 4 places, 20 once
    assert block_search.chain_seconds(chain, (1, 4, 4), lambda owner: 0.5) == pytest.approx(0.5 * (320 + 36 + 40 + 20))
