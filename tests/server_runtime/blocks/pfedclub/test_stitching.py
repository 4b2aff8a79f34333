"""Which blocks may follow one another, what stitches weigh, and maps fitted to another size."""

import pytest
import torch
from torch.nn import functional

from fedwright.server_runtime.blocks.pfedclub.stitching import (
    BlockShape,
    fitting,
    joins,
    pooled_places,
    stitch_kind,
    stitch_parameters,
    total_parameters,
)
from fedwright.server_runtime.zoo.stitched import make_stitch

CONV = BlockShape((8, 6, 6), (16, 3, 3), flat=False, head=False, parameters=100)
FLAT = BlockShape((16, 3, 3), (20,), flat=True, head=False, parameters=50)
LINEAR = BlockShape((20,), (20,), flat=True, head=False, parameters=40)
HEAD = BlockShape((20,), (10,), flat=True, head=True, parameters=30)


@pytest.mark.parametrize(
    ("gives", "part", "kind"),
    [
        ((8, 6, 6), CONV, "none"),
        ((4, 6, 6), CONV, "map"),
        ((8, 12, 12), CONV, "map"),
        ((20,), CONV, None),
        ((144,), FLAT, "none"),
        ((30,), FLAT, "flat"),
        ((16, 4, 4), FLAT, "map"),
        ((5, 4, 4), LINEAR, "pooled"),
        ((20,), HEAD, "none"),
        ((9, 128), CONV, None),
    ],
)
def test_what_stands_between_two_blocks(gives: tuple[int, ...], part: BlockShape, kind: str | None) -> None:
    assert stitch_kind(gives, part) == kind


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    ("gives", "part"), [((4, 6, 6), CONV), ((30,), FLAT), ((5, 4, 4), LINEAR), ((20,), HEAD), ((16, 4, 4), FLAT)]
)
def test_parameters_are_counted_as_they_are_made(gives: tuple[int, ...], part: BlockShape, dense: bool) -> None:
    stitch = make_stitch(gives, part, dense=dense)
    assert stitch_parameters(gives, part, dense=dense) == sum(value.numel() for value in stitch.parameters())
    out = stitch(torch.rand(3, *gives))
    assert out.flatten(1).shape[1] == torch.Size(part.takes).numel()


def test_a_map_is_pooled_to_the_nearest_width() -> None:
    assert pooled_places((5, 8, 8), LINEAR) == (2, 2)
    assert pooled_places((64, 4, 4), LINEAR) == (1, 1)


@pytest.mark.parametrize(("length", "wanted"), [(12, 5), (5, 12), (7, 7), (28, 3), (1, 4)])
def test_fitting_is_adaptive_pooling(length: int, wanted: int) -> None:
    x = torch.rand(2, 3, length)
    ours = x @ torch.from_numpy(fitting(length, wanted)).T
    torch.testing.assert_close(ours, functional.adaptive_avg_pool1d(x, wanted))


def test_hard_rules() -> None:
    assert joins([CONV, FLAT, HEAD], (3, 32, 32))
    assert not joins([CONV, FLAT], (3, 32, 32)), "no head"
    assert not joins([FLAT, CONV, HEAD], (3, 32, 32)), "a convolution after a linear layer"
    assert not joins([CONV, HEAD, LINEAR, HEAD], (3, 32, 32)), "a head in the middle"


def test_a_chain_weighs_its_blocks_and_its_stitches() -> None:
    # 3 → 8 channels: 3·8 + 8; nothing else has to be stitched
    assert total_parameters([CONV, FLAT, HEAD], (3, 6, 6)) == 100 + 50 + 30 + 32
