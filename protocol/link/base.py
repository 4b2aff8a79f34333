"""The one interface that both sides speak through; mqtt and memory links pass the same contract suite."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Buffer = bytes | memoryview
Watch = Callable[[bool], None]
"""Told False when the broker goes away and True when it is back, from a thread of the link."""


class Will(NamedTuple):
    """What the broker says for a process that it has lost: it hears of it every `keepalive_s` at least.

    A process that dies is lost at once; one whose power goes, or whose line, after one and a half of these.
    """

    topic: str
    payload: bytes
    keepalive_s: int


@dataclass(frozen=True)
class Received:
    """Bytes that arrived on a topic."""

    topic: str
    payload: Buffer


class Link(Protocol):
    """A connection to a broker.

    - `send` MUST NOT block on the network. With `reliable` the message MUST arrive at least once
      while the broker lives and the subscriber's session stands, also when the link is down now and
      comes back; without it the message MAY be dropped.
    - `receive` MUST return messages of one sender and topic in the order they were sent.
    - After a reconnect all subscriptions MUST stand again, and `connects` MUST have grown.
    - A `branch` MUST get what comes on topics with its prefix, and nobody else; it ends with its link.
    - The last will MUST be published by the broker when the process dies without `close`.
    """

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable now."""
        ...

    @property
    def connects(self) -> int:
        """How often the link came up; a growing number tells that messages may have been missed."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Payload bytes handed to the broker so far."""
        ...

    @property
    def received_bytes(self) -> int:
        """Payload bytes taken from the broker so far."""
        ...

    def branch(self, prefix: str) -> "Link":
        """A second reader over the same connection, of topics that begin so."""
        ...

    def subscribe(self, pattern: str) -> None:
        """Receive what is published on topics that match an MQTT pattern (+ and #)."""
        ...

    def send(self, topic: str, payload: bytes, *, tail: Buffer = b"", reliable: bool = True) -> None:
        """Publish the payload and its tail as one message; the tail is not copied and MUST NOT change any more."""
        ...

    def receive(self, timeout_s: float) -> Received | None:
        """The next message; None when none came in time, or when `wake` was called."""
        ...

    def wake(self) -> None:
        """Make a waiting or the next `receive` return None at once; safe from any thread."""
        ...

    def close(self) -> None:
        """Leave cleanly: flush reliable messages that can still go out, no last will."""
        ...
