"""How much one visitor may ask for: a bucket of tokens for each, refilled as time goes by."""

import time
from collections import OrderedDict
from collections.abc import Callable

# Of so many visitors the page remembers how much they asked; the one longest unheard goes first.
MOST_VISITORS = 4096


class Rates:
    """per_s: how many a second in the long run. burst: how many at once."""

    def __init__(self, per_s: float, burst: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, visitor: str) -> float:
        """Take one for a visitor: 0 when that is fine, else how long to wait first."""
        now_s = self._clock()
        left, at_s = self._left.pop(visitor, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        taken = left >= 1.0
        self._left[visitor] = (left - 1.0 if taken else left, now_s)
        if len(self._left) > MOST_VISITORS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._per_s
