"""A thread of its own that tells tools how a run does, so that no round waits for them.

What is to be told waits in a queue of limited length; when a tool is slower than the rounds, what does not fit is left
out and counted. A tool that fails is told no more, and the run goes on.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedwright.server_runtime.track.base import Described, Tracker, open_tracker

log = logging.getLogger(__name__)

QUEUE = 1000
# So long the end of a run waits for tools that are behind.
PATIENCE_S = 30.0

Result = TypeVar("Result")
Opener = Callable[[str, Described], Tracker]


@dataclass(frozen=True)
class Numbers:
    """Figures after a round."""

    step: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Files:
    """What a run leaves."""

    paths: Sequence[Path]


class TrackThread:
    """Tells tools, in the order in which it is asked to."""

    def __init__(
        self,
        names: Sequence[str],
        described: Described,
        *,
        opener: Opener = open_tracker,
        after: Callable[[Numbers | Files], object] = lambda message: None,
    ) -> None:
        """after: called when something was told, from the thread that told it."""
        self.dropped = 0
        self.told = 0
        self._names = names
        self._described = described
        self._opener = opener
        self._after = after
        self._queue: queue.Queue[Numbers | Files | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._work, name="track", daemon=True)
        self._thread.start()

    def tell(self, message: Numbers | Files) -> None:
        """Have it told when there is time; never waits."""
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("tracking is slower than the rounds; what does not fit is left out and counted")

    def close(self, *, patience_s: float = PATIENCE_S) -> None:
        """Let what waits be told; whatever is not told by then is left out."""
        try:
            self._queue.put(None, timeout=patience_s)
        except queue.Full:
            log.warning("tracking did not come to its end; %d figures are left out", self._queue.qsize())
            return
        self._thread.join(patience_s)
        if self._thread.is_alive():
            log.warning("tracking did not end within %.0f s; what it had not told is left out", patience_s)
        elif self.dropped:
            log.warning("tracking left out the figures of %d rounds", self.dropped)

    def _work(self) -> None:
        trackers = {}
        for name in self._names:
            made = self._try(name, self._opener, name, self._described)
            if made is not None:
                trackers[name] = made
        while (message := self._queue.get()) is not None:
            for name, tracker in list(trackers.items()):
                if not self._try(name, _give, tracker, message):
                    self._try(name, trackers.pop(name).close)
            self.told += 1
            self._after(message)
        for name, tracker in trackers.items():
            self._try(name, tracker.close)

    def _try(self, name: str, act: Callable[..., Result], *given: Any) -> Result | None:
        """What a tool gives back; None when it failed."""
        try:
            return act(*given)
        except Exception:
            # Whatever another program raises: a run does not end because its figures could not be shown.
            log.warning("%s failed and is told no more of this run", name, exc_info=True)
            return None


def _give(tracker: Tracker, message: Numbers | Files) -> bool:
    if isinstance(message, Numbers):
        tracker.numbers(message.step, message.figures)
    else:
        for path in filter(Path.is_file, message.paths):
            tracker.file(path)
    return True
