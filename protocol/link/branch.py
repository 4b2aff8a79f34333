"""A second reader on a link that stands, for who speaks in two fleets with one certificate: brokers let it in once."""

from fedwright.protocol.link.base import Buffer, Link, Received
from fedwright.protocol.link.inbox import Inbox


class Branch:
    """A link with a queue of its own that shares the connection, and all else, with another one and ends with it."""

    def __init__(self, stem: Link, inbox: Inbox) -> None:
        self._stem = stem
        self._inbox = inbox

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable now."""
        return self._stem.connected

    @property
    def connects(self) -> int:
        """How often the connection came up."""
        return self._stem.connects

    @property
    def sent_bytes(self) -> int:
        """Payload bytes of the connection."""
        return self._stem.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Payload bytes of the connection."""
        return self._stem.received_bytes

    def branch(self, prefix: str) -> Link:
        """A further reader of the same connection."""
        return self._stem.branch(prefix)

    def subscribe(self, pattern: str) -> None:
        """Receive what is published on topics that match, if they begin as this branch's do."""
        self._stem.subscribe(pattern)

    def send(self, topic: str, payload: bytes, *, tail: Buffer = b"", reliable: bool = True) -> None:
        """Publish over the common connection."""
        self._stem.send(topic, payload, tail=tail, reliable=reliable)

    def receive(self, timeout_s: float) -> Received | None:
        """The next message of this branch; None when none came in time, when woken, or when the link came back."""
        return self._inbox.get(timeout_s)

    def wake(self) -> None:
        """Make a waiting or the next `receive` return None at once."""
        self._inbox.wake()

    def close(self) -> None:
        """Nothing: the connection is closed by whom it belongs to."""
