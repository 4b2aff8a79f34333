"""How much one device may say: so many words a minute, reports of a sensible size, and no crowd of strangers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol.messages import Carried, Chunk, Get, Message, Report, Shown

MINUTE_S = 60.0
# A device reports when it connects or is asked to, and says a word twelve times a minute when it is not heard.
REPORTS_PER_MINUTE = 60
WORDS_PER_MINUTE = 1200
# What an edge carries counts for its devices, and for the edge only so much.
CARRIED_WORD = 0.01
# Messages that were not worth reading; a device that sends more is not read until it has been silent for a while.
WASTE_PER_MINUTE = 300
# Counts of a vocabulary of 200,000 words; decoded, numbers take eight times as much.
REPORT_BYTES = 1024**2
# Where anybody may give himself an id: how many ids there are, and what their reports take together that are larger
# than so: those of boards with a profile, those with counts of many words.
STRANGERS = 20_000
REPORTS_TOGETHER = {2 * 1024: 64 * 1024**2, 64 * 1024: 16 * 1024**2}


@dataclass
class _Budget:
    """Words that a device may still say, of all kinds, of reports and in vain, as of a moment."""

    at_s: float
    words: float = WORDS_PER_MINUTE
    reports: float = REPORTS_PER_MINUTE
    waste: float = WASTE_PER_MINUTE

    def refill(self, now_s: float) -> None:
        """Time gives back what was spent."""
        share = (now_s - self.at_s) / MINUTE_S
        self.at_s = now_s
        self.words = min(WORDS_PER_MINUTE, self.words + share * WORDS_PER_MINUTE)
        self.reports = min(REPORTS_PER_MINUTE, self.reports + share * REPORTS_PER_MINUTE)
        self.waste = min(WASTE_PER_MINUTE, self.waste + share * WASTE_PER_MINUTE)


class MessageLimits:
    """Says which messages are too many; `enrolled`: ids were given out, so that their number is known."""

    def __init__(self, *, enrolled: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.enrolled = enrolled
        self._clock = clock
        self._budgets: dict[str, _Budget] = {}
        self._crowd = _Budget(clock())
        self._sizes: dict[str, int] = {}
        self._together = dict.fromkeys(REPORTS_TOGETHER, 0)

    def problem(self, device: str, message: Message, size_bytes: int, *, edge: bool = False) -> str | None:
        """Why a message is not taken; None when it is. Pieces of blobs are asked for, and so not counted."""
        if isinstance(message, Chunk | Get):
            return None
        budget = self._budget(device)
        if budget is self._crowd:
            return f"it is one more than {STRANGERS} devices that nobody enrolled; enroll them"
        word = CARRIED_WORD if edge and isinstance(message, Carried | Shown) else 1.0
        if budget.words < word or (isinstance(message, Report) and budget.reports < 1):
            return "it says more in a minute than a device has to say; what is too much is not heard"
        budget.words -= word
        budget.reports -= isinstance(message, Report)
        return self._size_problem(device, size_bytes) if isinstance(message, Report) else None

    def waste(self, device: str) -> None:
        """A message of a device was not worth reading."""
        self._budget(device).waste -= 1

    def is_muted(self, device: str) -> bool:
        """Whether a device said so much in vain that its messages are not even read now."""
        full = not self.enrolled and len(self._budgets) >= STRANGERS
        return (device in self._budgets or full) and self._budget(device).waste < 1

    def _budget(self, device: str) -> _Budget:
        """What a device has left; the crowd of strangers that are too many shares one budget."""
        budget = self._budgets.get(device)
        if budget is None and not self.enrolled and len(self._budgets) >= STRANGERS:
            budget = self._crowd
        elif budget is None:
            budget = self._budgets[device] = _Budget(self._clock())
        budget.refill(self._clock())
        return budget

    def _size_problem(self, device: str, size_bytes: int) -> str | None:
        if size_bytes > REPORT_BYTES:
            return f"its report of {size_bytes} bytes is over the limit of {REPORT_BYTES}; tell less of its data"
        if self.enrolled:
            return None
        self._count(-self._sizes.pop(device, 0))
        for larger_than, most_bytes in REPORTS_TOGETHER.items():
            if size_bytes > larger_than and self._together[larger_than] + size_bytes > most_bytes:
                return f"large reports of devices that nobody enrolled take {most_bytes} bytes already; enroll them"
        self._sizes[device] = size_bytes
        self._count(size_bytes)
        return None

    def _count(self, size_bytes: int) -> None:
        """A report of this size is kept, or (below 0) one of it no longer."""
        for larger_than in REPORTS_TOGETHER:
            if abs(size_bytes) > larger_than:
                self._together[larger_than] += size_bytes
