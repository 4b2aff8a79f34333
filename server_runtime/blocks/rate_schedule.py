"""The learning rate of every round: constant, in steps, exponential or a cosine, after a warm-up."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.support.settings import check_range, hint


@dataclass(frozen=True)
class RateSchedule:
    """What the learning rate is multiplied by in a round; t rounds after the warm-up's end, with n rounds to go then.

    constant 1, step factor^floor(t / every), exponential factor^t, cosine (1 + cos(π t / n)) / 2 scaled to end at
    lowest_ratio, as torch's schedulers of these names. The warm-up of w rounds rises by 1 / (w + 1) in each.
    """

    kind: Literal["constant", "step", "cosine", "exponential"] = field(
        default="constant", metadata=hint("constant, step, cosine or exponential")
    )
    every: int = field(default=10, metadata=hint("rounds between two steps (step)"))
    factor: float = field(default=0.5, metadata=hint("by which a step, or a round of exponential, multiplies the rate"))
    lowest_ratio: float = field(default=0.0, metadata=hint("share of learning_rate that it never falls below"))
    warmup_rounds: int = field(default=0, metadata=hint("first rounds, in which the rate rises evenly"))
    rounds: int | None = field(default=None, metadata=hint("where a cosine ends; absent: at the run's last round"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("schedule.every", self.every, low=1)
        check_range("schedule.factor", self.factor, above=0, high=1)
        check_range("schedule.lowest_ratio", self.lowest_ratio, low=0, high=1)
        check_range("schedule.warmup_rounds", self.warmup_rounds, low=0)
        if self.rounds is not None:
            check_range("schedule.rounds", self.rounds, low=1)

    def ratio(self, round_number: int, rounds: int) -> float:
        """Of the learning rate in a round, counted from 1, of a run of so many rounds."""
        if round_number <= self.warmup_rounds:
            return round_number / (self.warmup_rounds + 1)
        after = round_number - 1 - self.warmup_rounds
        if self.kind == "step":
            return max(self.lowest_ratio, float(self.factor ** (after // self.every)))
        if self.kind == "exponential":
            return max(self.lowest_ratio, float(self.factor**after))
        if self.kind == "cosine":
            length = max(1, (self.rounds or rounds) - self.warmup_rounds)
            wave = (1 + math.cos(math.pi * min(1.0, after / length))) / 2
            return self.lowest_ratio + (1 - self.lowest_ratio) * wave
        return 1.0
