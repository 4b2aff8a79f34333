"""How much one device may say: so many words a minute, reports of a sensible size, and no crowd of strangers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol.messages import Chunk, Get, Message, Report

MINUTE_S = 60.0
# A device reports when it connects or is asked to, and says a word twelve times a minute when it is not heard.
REPORTS_PER_MINUTE = 60
WORDS_PER_MINUTE = 1200
# Counts of a vocabulary of 200,000 words; decoded, numbers take eight times as much.
REPORT_BYTES = 1024**2
# Where anybody may give himself an id: how many ids there are, and what their large reports take together.
STRANGERS = 20_000
LARGE_REPORT_BYTES = 64 * 1024
STRANGERS_BYTES = 16 * 1024**2


@dataclass
class _Budget:
    """Words that a device may still say, of all kinds and of reports, as of a moment."""

    at_s: float
    words: float = WORDS_PER_MINUTE
    reports: float = REPORTS_PER_MINUTE


class MessageLimits:
    """Says which messages are too many; `enrolled`: ids were given out, so that their number is known."""

    def __init__(self, *, enrolled: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.enrolled = enrolled
        self._clock = clock
        self._budgets: dict[str, _Budget] = {}
        self._large: dict[str, int] = {}

    def problem(self, device: str, message: Message, size_bytes: int) -> str | None:
        """Why a message is not taken; None when it is. Pieces of blobs are asked for, and so not counted."""
        if isinstance(message, Chunk | Get):
            return None
        budget = self._budgets.get(device)
        if budget is None:
            if not self.enrolled and len(self._budgets) >= STRANGERS:
                return f"it is one more than {STRANGERS} devices that nobody enrolled; enroll them"
            budget = self._budgets[device] = _Budget(self._clock())
        if not self._spend(budget, isinstance(message, Report)):
            return "it says more in a minute than a device has to say; what is too much is not heard"
        return self._size_problem(device, size_bytes) if isinstance(message, Report) else None

    def _spend(self, budget: _Budget, reports: bool) -> bool:
        now_s = self._clock()
        share = (now_s - budget.at_s) / MINUTE_S
        budget.at_s = now_s
        budget.words = min(WORDS_PER_MINUTE, budget.words + share * WORDS_PER_MINUTE)
        budget.reports = min(REPORTS_PER_MINUTE, budget.reports + share * REPORTS_PER_MINUTE)
        if budget.words < 1 or (reports and budget.reports < 1):
            return False
        budget.words -= 1
        budget.reports -= reports
        return True

    def _size_problem(self, device: str, size_bytes: int) -> str | None:
        if size_bytes > REPORT_BYTES:
            return f"its report of {size_bytes} bytes is over the limit of {REPORT_BYTES}; tell less of its data"
        self._large.pop(device, None)
        if self.enrolled or size_bytes <= LARGE_REPORT_BYTES:
            return None
        if sum(self._large.values()) + size_bytes > STRANGERS_BYTES:
            return f"large reports of devices that nobody enrolled take {STRANGERS_BYTES} bytes already; enroll them"
        self._large[device] = size_bytes
        return None
