"""What a device is at, for people who watch the fleet: fetching, training, sending, and how the board does."""

import time
from collections.abc import Callable, Collection

from fedwright.device_runtime import facts
from fedwright.device_runtime.resources import Resources
from fedwright.protocol.blobs import Download
from fedwright.protocol.messages import Chunk, Lost, Status, Update

# However often a server asks, a device has more to do than to speak of itself.
LEAST_S = 1.0


class StatusTeller:
    """Says what to tell the server, and when; nothing unless the task in hand asks for it."""

    def __init__(self, resources: Resources, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._have = resources
        self._clock = clock
        self._told_s = -LEAST_S
        self._sent_bytes = 0
        self._of = ""

    def sent(self, message: Chunk | Lost) -> None:
        """Count a piece of an update on its way out."""
        if isinstance(message, Chunk):
            self._sent_bytes += len(message.data)

    def due(self, downloads: Collection[Download], *, working: bool) -> Status | None:
        """What to say now; None when it is too early, or nobody asked."""
        entry = self._have.journal.entry
        if entry is None or not entry.task.status_s:
            return None
        now_s = self._clock()
        if now_s - self._told_s < max(LEAST_S, entry.task.status_s):
            return None
        self._told_s = now_s
        if self._of != entry.task.task:
            self._of, self._sent_bytes = entry.task.task, 0
        state, done, of = self._at(entry.answer, downloads, working)
        return Status(
            entry.task.task,
            state,
            min(done, of),
            of,
            self._have.runner.free_bytes(),
            self._have.board.ram_bytes,
            facts.temperature_c(),
        )

    def _at(self, answer: object, downloads: Collection[Download], working: bool) -> tuple[str, int, int]:
        """The state in a word, and how much of it is done."""
        if isinstance(answer, Update) and answer.tensors is not None:
            return "uploading", self._sent_bytes, answer.tensors.size_bytes
        if answer is not None:
            return "waiting", 0, 0
        if downloads:
            of = sum(download.ref.size_bytes for download in downloads)
            missing = sum(download.missing * download.ref.chunk_bytes for download in downloads)
            return "fetching", max(0, of - missing), of
        if working:
            return "training", *self._have.runner.progress()
        return "waiting", 0, 0
