"""The in-process twin of the mqtt link: one broker object, links that exchange bytes through it."""

import threading

from fedwright.protocol.errors import LinkError
from fedwright.protocol.link.base import Buffer, Received
from fedwright.protocol.link.branch import Branch
from fedwright.protocol.link.inbox import InboxLink


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic falls under an MQTT pattern: + stands for one level, # for all that follow."""
    wanted = pattern.split("/")
    levels = topic.split("/")
    for position, want in enumerate(wanted):
        if want == "#":
            return True
        if position >= len(levels) or want not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)


class MemoryBroker:
    """Passes messages between links of one process; `stop` and `start` play a broker that is away for a while."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._links: list[MemoryLink] = []
        self._running = True

    def link(self, client_id: str, *, will: tuple[str, bytes] | None = None) -> "MemoryLink":
        """A new connected link; LinkError while the broker is stopped."""
        with self._lock:
            if not self._running:
                raise LinkError("no broker in memory (it is stopped); start it first")
            link = MemoryLink(self, client_id, will)
            self._links.append(link)
            return link

    @property
    def running(self) -> bool:
        """Whether links are up."""
        return self._running

    def stop(self) -> None:
        """Cut every link; reliable messages wait for `start`, others are lost."""
        with self._lock:
            self._running = False

    def start(self) -> None:
        """Bring every link up again and send what waited."""
        with self._lock:
            if self._running:
                return
            self._running = True
            links = list(self._links)
            for link in links:
                link._come_up()
            for link in links:
                link._send_waiting()

    def _publish(self, topic: str, payload: bytes, reliable: bool) -> None:
        with self._lock:
            for link in self._links:
                link._deliver(Received(topic, payload), reliable)

    def _leave(self, link: "MemoryLink", will: tuple[str, bytes] | None) -> None:
        with self._lock:
            if link not in self._links:
                return
            self._links.remove(link)
            if will is not None:
                self._publish(will[0], will[1], True)


class MemoryLink(InboxLink):
    """A link to a MemoryBroker; `drop` plays the death of its process."""

    def __init__(self, broker: MemoryBroker, client_id: str, will: tuple[str, bytes] | None) -> None:
        super().__init__()
        self.client_id = client_id
        self._broker = broker
        self._will = will
        self._patterns: list[str] = []
        self._waiting: list[tuple[str, bytes]] = []
        self._open = True
        self.connects = 1

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable now."""
        return self._open and self._broker.running

    def branch(self, prefix: str) -> Branch:
        """A second reader on this link, of topics that begin so."""
        return Branch(self, self._branch_inbox(prefix))

    def subscribe(self, pattern: str) -> None:
        """Receive what is published on topics that match the pattern."""
        with self._broker._lock:
            if pattern not in self._patterns:
                self._patterns.append(pattern)

    def send(self, topic: str, payload: bytes, *, tail: Buffer = b"", reliable: bool = True) -> None:
        """Publish; reliable messages wait while the broker is stopped."""
        payload = b"".join((payload, tail))
        with self._broker._lock:
            if self.connected:
                self.sent_bytes += len(payload)
                self._broker._publish(topic, payload, reliable)
            elif self._open and reliable:
                self._waiting.append((topic, payload))

    def close(self) -> None:
        """Leave cleanly, without last will."""
        self._open = False
        self._broker._leave(self, None)

    def drop(self) -> None:
        """Die as a killed process does: the broker publishes the last will."""
        self._open = False
        self._broker._leave(self, self._will)

    def _come_up(self) -> None:
        self.connects += 1
        self._wake_all()

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for topic, payload in waiting:
            self.send(topic, payload)

    def _deliver(self, message: Received, reliable: bool) -> None:
        if any(matches(pattern, message.topic) for pattern in self._patterns) and self._sort_in(
            message, reliable=reliable
        ):
            self.received_bytes += len(message.payload)
