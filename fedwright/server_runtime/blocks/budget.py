"""From a budget to a plan: the largest choice whose predicted cost fits, found by bisection.

Costs never fall when a model or a batch grows (protocol/predictor.py), so bisection finds the largest choice with
log2 n predictions. The choice may be anything in order of size: widths, mask or shrinkage ratios, LoRA ranks, depths,
blocks by size, batch sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.predictor import Profile, need_bytes, predict

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """What a device may use in one round; None is no limit."""

    memory_bytes: int | None = None
    seconds: float | None = None
    link_bytes: int | None = None


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
    """The largest whole number in low..high that fits; None when none does. What fits must fit when smaller, too."""
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


def largest_ratio(cost: Callable[[float], Cost], budget: Budget, *, least: float, step: float = 0.01) -> float | None:
    """The largest ratio in least..1 that fits, to `step`: a width, a mask ratio, a shrinkage ratio."""
    count = round((1.0 - least) / step)
    return largest_choice([min(1.0, least + step * index) for index in range(count + 1)], cost, budget)


def task_cost(manifest: Manifest, profile: Profile | None, *, batch: int, steps: int, keep_ratio: float = 1.0) -> Cost:
    """What a task of so many steps costs a device; without a profile its time counts as nothing.

    Weights go down whole; of the change, `keep_ratio` comes back.
    """
    weights = sum(4 * _count(slot.shape) for slot in manifest.slots if slot.role != "optimizer")
    step_s = 0.0 if profile is None or not manifest.work else predict(profile, manifest.work, batch=batch).step_s
    return Cost(need_bytes(manifest, batch), step_s * steps, int(weights * (1.0 + keep_ratio)))


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
