"""The state that did best on devices' own held-out rows: measured every few rounds, kept until a better one comes."""

from collections.abc import Mapping

import numpy as np

from fedwright.protocol.messages import Stats
from fedwright.server_runtime.methods.base import MethodState, Tensors

BEST = "best/"


class Checkpoints:
    """The mean over devices of the share of held-out rows that a state gets right decides; every: rounds, 0 = never."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.best: Tensors = {}
        self.score = -1.0
        # Whether devices were asked in this round, and what they have said.
        self.asked = False
        self._said: dict[str, float] = {}

    def due(self, number: int, *last: int) -> bool:
        """Whether devices measure in this round: every few rounds, and where something ends."""
        return bool(self._every) and not self.asked and (number % self._every == 0 or number in last)

    def ask(self) -> None:
        """Devices are asked."""
        self.asked = True

    def hear(self, device: str, stats: Stats) -> None:
        """What a device measured; nothing where it holds out no rows."""
        if stats.holdout and stats.correct_before is not None:
            self._said[device] = min(1.0, stats.correct_before / stats.holdout)

    def close(self, measured: Mapping[str, np.ndarray]) -> float | None:
        """The round ends: keep what was measured if it is the best so far; its score, None where nobody measured."""
        said, self._said, self.asked = self._said, {}, False
        if not said:
            return None
        score = sum(said.values()) / len(said)
        if score > self.score:
            self.score, self.best = score, {name: np.array(value) for name, value in measured.items()}
        return score

    def begin_anew(self) -> None:
        """Something else is measured from now on."""
        self.best, self.score = {}, -1.0

    def state(self) -> MethodState:
        """To be saved with the method."""
        best = {BEST + name: value for name, value in self.best.items()}
        return MethodState.of(best, best_score=self.score, measuring=self.asked, said=self._said)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self.best, self.score = state.below(BEST), state.record("best_score", float)
        self.asked, self._said = state.record("measuring", bool), state.record("said", dict[str, float])
