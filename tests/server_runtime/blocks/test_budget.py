"""From a budget to a plan: bisection against trying everything, and costs by hand."""

import math
from unittest.mock import Mock

import pytest
from msgspec import structs

from fedwright.device_runtime.train.loop import total_steps
from fedwright.protocol.messages import DataSummary, Recipe, Returns
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.blocks.budget import (
    Budget,
    Cost,
    largest,
    largest_choice,
    largest_ratio,
    link_bytes,
    step_count,
    task_cost,
)
from helpers.tiny_artifact import make_artifact


@pytest.mark.parametrize("limit", range(-1, 12))
def test_bisection_finds_what_trying_everything_finds(limit: int) -> None:
    tried = [number for number in range(1, 11) if number <= limit]

    assert largest(1, 10, lambda number: number <= limit) == (max(tried) if tried else None)


def test_bisection_asks_seldom() -> None:
    below = Mock(side_effect=lambda number: number < 777)
    largest(0, 1_000_000, below)

    assert below.call_count <= 22


def test_nothing_to_choose_from_is_nothing() -> None:
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
def test_the_tightest_limit_decides(budget: Budget, fits: bool) -> None:
    assert Cost(100, 2.0, 10).fits(budget) is fits


def test_a_rank_and_a_ratio_by_hand() -> None:
    # 10 bytes a rank: 45 bytes hold rank 4.
    assert largest_choice([1, 2, 4, 8], lambda rank: Cost(memory_bytes=10 * rank), Budget(memory_bytes=45)) == 4
    # Memory grows with the square of the width: 0.5^2 of 1000 bytes is 250.
    width = largest_ratio(lambda ratio: Cost(memory_bytes=int(1000 * ratio**2)), Budget(memory_bytes=250), least=0.1)
    assert width == pytest.approx(0.5)
    assert largest_ratio(lambda ratio: Cost(memory_bytes=9), Budget(memory_bytes=8), least=0.1) is None


def test_of_two_budgets_the_tighter_counts_in_every_respect() -> None:
    both = Budget(memory_bytes=5, seconds=2.0).within(Budget(memory_bytes=7, seconds=1.0, link_bytes=3))

    assert both == Budget(5, 1.0, 3)


def test_the_cost_of_a_task_by_hand() -> None:
    manifest = structs.replace(make_artifact().manifest, fixed_bytes=1000, sample_bytes=10)
    entries = sum(math.prod(slot.shape) for slot in manifest.slots if slot.role != "optimizer")
    recipe = Recipe(batch=8, learning_rate=0.1, seed=1, epochs=2)
    data = DataSummary(samples=20, holdout=12, input_shape=[3], classes=4)

    cost = task_cost(manifest, recipe, returns=Returns(), data=data, step_s=0.01)

    # Two epochs of 3 steps; 12 samples forward before and after, a third of a step for every 8.
    assert cost.seconds == pytest.approx(0.01 * (6 + 2 * 12 / 8 / 3))
    assert cost.memory_bytes == need_bytes(manifest, 8)
    assert cost.link_bytes == 8 * entries


@pytest.mark.parametrize(
    ("returns", "sent_ratio", "bytes_each"),
    [
        pytest.param(Returns(codec="bf16"), 1.0, 4 + 2, id="rounded"),
        pytest.param(Returns(codec="int8", keep_ratio=0.5), 1.0, 4 + 0.5 * (1 + 1), id="largest half with indices"),
        pytest.param(Returns(masked=True), 0.25, 0.25 * (4 + 1) + 0.25 * 4, id="a quarter, indices down only"),
        pytest.param(Returns(weights="none"), 1.0, 4, id="nothing back"),
    ],
)
def test_the_bytes_of_a_task_by_hand(returns: Returns, sent_ratio: float, bytes_each: float) -> None:
    manifest = make_artifact().manifest
    entries = sum(math.prod(slot.shape) for slot in manifest.slots if slot.role != "optimizer")

    assert link_bytes(manifest, returns, sent_ratio=sent_ratio) == int(entries * bytes_each)


def test_class_means_are_counted() -> None:
    manifest = structs.replace(make_artifact().manifest, classes=4, embedding_size=6)
    more = link_bytes(manifest, Returns(class_means=True)) - link_bytes(manifest, Returns())

    assert more == 4 * (4 * 6 + 4)


@pytest.mark.parametrize(
    ("recipe", "samples", "steps"),
    [
        pytest.param(Recipe(8, 0.1, 1, epochs=2), 17, 6, id="last batch is smaller"),
        pytest.param(Recipe(8, 0.1, 1, steps=5), 17, 5, id="steps"),
        pytest.param(Recipe(8, 0.1, 1, steps=5), 0, 0, id="no data"),
    ],
)
def test_steps_are_those_of_the_device(recipe: Recipe, samples: int, steps: int) -> None:
    assert step_count(recipe, samples) == total_steps(recipe, samples) == steps
