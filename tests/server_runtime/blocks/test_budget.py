"""From a budget to a plan: bisection against trying everything, and costs by hand."""

import pytest

from fedwright.protocol.predictor import FEATURES, WORK_BATCHES, Profile, need_bytes
from fedwright.server_runtime.blocks.budget import Budget, Cost, largest, largest_choice, largest_ratio, task_cost
from helpers.tiny_artifact import make_artifact


@pytest.mark.parametrize("limit", range(-1, 12))
def test_bisection_finds_what_trying_everything_finds(limit):
    tried = [number for number in range(1, 11) if number <= limit]

    assert largest(1, 10, lambda number: number <= limit) == (max(tried) if tried else None)


def test_bisection_asks_seldom():
    asked = []
    largest(0, 1_000_000, lambda number: asked.append(number) or number < 777)

    assert len(asked) <= 22


def test_nothing_to_choose_from_is_nothing():
    assert largest(1, 0, lambda number: True) is None
    assert largest_choice([], lambda rank: Cost(), Budget()) is None


@pytest.mark.parametrize(
    ("budget", "fits"),
    [
        pytest.param(Budget(), True, id="no limit"),
        pytest.param(Budget(memory_bytes=100, seconds=2.0, link_bytes=10), True, id="just enough"),
        pytest.param(Budget(memory_bytes=99), False, id="memory"),
        pytest.param(Budget(seconds=1.9), False, id="time"),
        pytest.param(Budget(link_bytes=9), False, id="link"),
    ],
)
def test_the_tightest_limit_decides(budget, fits):
    assert Cost(100, 2.0, 10).fits(budget) is fits


def test_a_rank_and_a_ratio_by_hand():
    # 10 bytes a rank: 45 bytes hold rank 4.
    assert largest_choice([1, 2, 4, 8], lambda rank: Cost(memory_bytes=10 * rank), Budget(memory_bytes=45)) == 4
    # Memory grows with the square of the width: 0.5^2 of 1000 bytes is 250.
    width = largest_ratio(lambda ratio: Cost(memory_bytes=int(1000 * ratio**2)), Budget(memory_bytes=250), least=0.1)
    assert width == pytest.approx(0.5)
    assert largest_ratio(lambda ratio: Cost(memory_bytes=9), Budget(memory_bytes=8), least=0.1) is None


def test_the_cost_of_a_task_by_hand():
    from msgspec import structs

    manifest = make_artifact().manifest
    calls = [value for _ in WORK_BATCHES for value in (5.0, *[0.0] * (len(FEATURES) - 1))]
    manifest = structs.replace(manifest, work={"Add": calls}, fixed_bytes=1000, sample_bytes=10)
    profile = Profile("b", "r", 1, kinds={"Add": [1e-3, *[0.0] * (len(FEATURES) - 1)]})
    weights = sum(4 * _size(slot.shape) for slot in manifest.slots if slot.role != "optimizer")

    cost = task_cost(manifest, profile, batch=8, steps=3, keep_ratio=0.5)

    # Five calls of a millisecond, three steps; weights down, half of the change up.
    assert cost.seconds == pytest.approx(0.015)
    assert cost.memory_bytes == need_bytes(manifest, 8)
    assert cost.link_bytes == int(weights * 1.5)
    assert task_cost(manifest, None, batch=8, steps=3).seconds == 0.0


def _size(shape):
    total = 1
    for size in shape:
        total *= size
    return total
