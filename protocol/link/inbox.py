"""The queue between a link's callbacks and the loop that reads it: bounded in bytes, with a wake-up."""

import contextlib
import queue
import threading
import time
from collections import deque

from fedwright.protocol.link.base import Received

# Receiver credit keeps honest chunk traffic far below this; a flood of unreliable messages is cut here.
UNRELIABLE_LIMIT_BYTES = 128 * 1024 * 1024
# Control messages are small; a peer that fills this is not honest, and the sender repeats what matters.
TOTAL_LIMIT_BYTES = 512 * 1024 * 1024


class Inbox:
    """Received messages in order; `put` never blocks."""

    def __init__(self) -> None:
        self._messages: deque[Received] = deque()
        self._waiting_bytes = 0
        self._woken = False
        self._lock = threading.Lock()
        # A call to look again stays until it is heard, and may come from a signal handler of the thread that waits: a
        # condition would lose one that comes just before it waits.
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, message: Received, *, reliable: bool) -> bool:
        """Add a message; False when it was dropped because the reader is too far behind."""
        limit_bytes = TOTAL_LIMIT_BYTES if reliable else UNRELIABLE_LIMIT_BYTES
        with self._lock:
            if self._waiting_bytes + len(message.payload) > limit_bytes:
                return False
            self._messages.append(message)
            self._waiting_bytes += len(message.payload)
        self._call()
        return True

    def wake(self) -> None:
        """Make a waiting or the next `get` return None."""
        self._woken = True
        self._call()

    def get(self, timeout_s: float) -> Received | None:
        """The next message; None after `wake` or when none came in time."""
        deadline_s = time.monotonic() + timeout_s
        while not self._messages and not self._woken:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=left_s)
        if self._woken:
            self._woken = False
            return None
        with self._lock:
            message = self._messages.popleft()
            self._waiting_bytes -= len(message.payload)
            return message

    def _call(self) -> None:
        if self._calls.empty():
            self._calls.put(None)


class InboxLink:
    """What a link is made of besides its broker: inboxes that others put into, and what it counts."""

    def __init__(self) -> None:
        """connects grows once the link is up with all its subscriptions; bytes are those of payloads."""
        self._inbox = Inbox()
        self._branches: dict[str, Inbox] = {}
        self.connects = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def receive(self, timeout_s: float) -> Received | None:
        """The next message; None when none came in time, when `wake` was called, or when the link came back."""
        return self._inbox.get(timeout_s)

    def wake(self) -> None:
        """Make a waiting or the next `receive` return None at once."""
        self._inbox.wake()

    def _branch_inbox(self, prefix: str) -> Inbox:
        """From now on what comes on topics that begin so goes there."""
        return self._branches.setdefault(prefix, Inbox())

    def _sort_in(self, received: Received, *, reliable: bool) -> bool:
        """Put a message where its topic belongs; False when its reader is too far behind."""
        found = (inbox for prefix, inbox in self._branches.items() if received.topic.startswith(prefix))
        return next(found, self._inbox).put(received, reliable=reliable)

    def _wake_all(self) -> None:
        for inbox in (self._inbox, *self._branches.values()):
            inbox.wake()
