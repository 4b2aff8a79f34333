"""From a budget to a plan: the largest choice whose predicted cost fits, found by bisection.

Costs never fall when a model or a batch grows (protocol/predictor.py), so bisection finds the largest choice with
log2 n predictions. The choice may be anything in order of size: widths, mask or shrinkage ratios, LoRA ranks, depths,
blocks by size, batch sizes. `methods/shared/budget_fit.py` asks it for a device, from its report and a run's setting.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from fedwright.protocol.artifact import Manifest, returned_shapes
from fedwright.protocol.messages import DataSummary, Recipe, Returns
from fedwright.protocol.predictor import need_bytes

T = TypeVar("T")

# Going forward is about a third of a step, which also goes back through every operator twice.
FORWARD_RATIO = 1 / 3
# Bytes of an entry as updates are sent, and of the index of one that is sent without its neighbours.
VALUE_BYTES = {"float32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5625}
INDEX_BYTES = 1.0
# Side inputs that a device makes from what it got.
OWN_SIDES = ("mask/", "centre/")


@dataclass(frozen=True)
class Budget:
    """What a device may use in one round; None is no limit."""

    memory_bytes: int | None = None
    seconds: float | None = None
    link_bytes: int | None = None

    def within(self, other: "Budget") -> "Budget":
        """The tighter of both in every respect."""
        return Budget(
            _tighter(self.memory_bytes, other.memory_bytes),
            _tighter(self.seconds, other.seconds),
            _tighter(self.link_bytes, other.link_bytes),
        )


N = TypeVar("N", int, float)


def _tighter(first: N | None, second: N | None) -> N | None:
    return second if first is None else first if second is None else min(first, second)


@dataclass(frozen=True)
class Cost:
    """What a task takes: memory at its peak, seconds of all its steps, bytes both ways."""

    memory_bytes: int = 0
    seconds: float = 0.0
    link_bytes: int = 0

    def fits(self, budget: Budget) -> bool:
        """Whether nothing is over the budget."""
        pairs = (
            (self.memory_bytes, budget.memory_bytes),
            (self.seconds, budget.seconds),
            (self.link_bytes, budget.link_bytes),
        )
        return all(limit is None or value <= limit for value, limit in pairs)


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest whole number in low..high that fits; None when none does. What fits must fit when smaller, too.

    The largest is tried first: mostly it fits, and every trial may build a graph.
    """
    if high < low:
        return None
    if fits(high):
        return high
    high -= 1
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def largest_choice(choices: Sequence[T], cost: Callable[[T], Cost], budget: Budget) -> T | None:
    """The last of the choices, smallest first, that fits; None when none does."""
    found = largest(0, len(choices) - 1, lambda index: cost(choices[index]).fits(budget))
    return None if found is None else choices[found]


def largest_ratio(
    cost: Callable[[float], Cost], budget: Budget, *, least: float, most: float = 1.0, step: float = 0.01
) -> float | None:
    """The largest ratio in least..most that fits, to `step`: a width, a mask ratio, a shrinkage ratio."""
    count = math.ceil((most - least) / step - 1e-9)
    return largest_choice([min(most, least + step * index) for index in range(count + 1)], cost, budget)


def task_cost(
    manifest: Manifest,
    recipe: Recipe,
    *,
    returns: Returns,
    data: DataSummary,
    step_s: float = 0.0,
    sent_ratio: float = 1.0,
) -> Cost:
    """What a task costs a device whose step takes `step_s`: all steps, the measuring before and after, both ways.

    sent_ratio: share of the entries that travel (masks); indices are counted where entries travel alone.
    """
    steps = float(step_count(recipe, data.samples))
    if returns.evaluate:
        steps += FORWARD_RATIO * (2 if steps else 1) * data.holdout / recipe.batch
    traffic = link_bytes(manifest, returns, sent_ratio=sent_ratio)
    return Cost(need_bytes(manifest, recipe.at_once), steps * step_s, traffic)


def step_count(recipe: Recipe, samples: int) -> int:
    """How many steps a recipe takes over so many samples."""
    if recipe.steps is not None:
        return recipe.steps if samples else 0
    return recipe.epochs * math.ceil(samples / recipe.batch)


def link_bytes(manifest: Manifest, returns: Returns, *, sent_ratio: float = 1.0) -> int:
    """Bytes down and up of one task, before compression; what a device fetches only once does not count."""
    entries = sum(math.prod(slot.shape) for slot in manifest.slots if slot.role != "optimizer")
    sides = [side.shape for side in manifest.sides if not side.name.startswith(OWN_SIDES) and -1 not in side.shape]
    down = 4.0 * sum(map(math.prod, sides)) + sent_ratio * entries * (4.0 + (INDEX_BYTES if sent_ratio < 1 else 0.0))
    described = returned_shapes(manifest, structs.replace(returns, weights="none", logits=0))
    up = 4.0 * sum(map(math.prod, described.values()))
    entries -= sum(math.prod(slot.shape) for slot in manifest.slots if slot.name in returns.personal)
    sent = entries * (sent_ratio if returns.masked else 1.0)
    if returns.weights == "weights":
        up += 4.0 * entries
    elif returns.weights == "delta":
        index = INDEX_BYTES if returns.keep_ratio < 1 else 0.0
        up += sent * returns.keep_ratio * (VALUE_BYTES[returns.codec] + index)
    return int(down + up)
