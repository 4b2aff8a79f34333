"""Who a device is, and whom it listens to: one server, or the first edge of a list that is alive."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol import codec, topics
from fedwright.protocol.errors import BadMessage, DeviceError, IdentityTaken
from fedwright.protocol.messages import Ack, Dismiss, Envelope, Message, Task

log = logging.getLogger(__name__)

# A broker may hold a message while a link is down, but an hour-old order is not one the server still means. For servers
# of earlier releases, which do not number their orders.
STALE_S = 3600.0
# An edge says every two seconds that it is alive.
PATIENCE_S = 15.0


@dataclass(frozen=True)
class DeviceIdentity:
    """Who this agent is on the wire, and how it knows its server.

    boot: new at each start of the process; orders for another boot are not for us. verify: checks the server's
    signature; None takes any server's word (development only). further: edges to go to, in turn, when the fleet's
    own says nothing for patience_s; an edge serves the fleet of its own name. sign: with the key of this device's
    certificate.
    """

    device: str
    fleet: str
    boot: str
    verify: codec.Verify | None = None
    further: tuple[str, ...] = ()
    patience_s: float = PATIENCE_S
    sign: codec.Sign | None = None


class ServerChoice:
    """The server that this device belongs to now."""

    def __init__(self, identity: DeviceIdentity, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._homes = (identity.fleet, *identity.further)
        self._place = 0
        self._clock = clock
        self._heard_s = clock()
        # The latest order of each kind, and the server's time by those that have no number, since when.
        self._latest: dict[tuple[type, str | None], codec.Order] = {}
        self._newest_s: float | None = None
        self._newest_since_s = 0.0
        self._sent = 0

    @property
    def fleet(self) -> str:
        """The fleet that is served now."""
        return self._homes[self._place]

    @property
    def up(self) -> str:
        """Where to speak."""
        return topics.up(self.fleet, self._identity.device)

    @property
    def down(self) -> tuple[str, str]:
        """Where to listen."""
        return topics.down(self.fleet, self._identity.device), topics.shared(self.fleet)

    def wrap(self, message: Message) -> tuple[bytes, bytes | memoryview]:
        """A message of this device in two parts, numbered after those before it."""
        self._sent += 1
        who, order = self._identity, codec.Order(sequence=self._sent)
        return codec.encode_parts(message, sender=who.device, boot=who.boot, sign=who.sign, order=order)

    def open(self, topic: str, payload: bytes | memoryview) -> Envelope | None:
        """A message for this device; None for one of a server it has left, BadMessage for one it must not obey."""
        if topic not in self.down:
            return None
        self._heard_s = self._clock()
        envelope = codec.decode(payload, verify=self._identity.verify)
        if isinstance(envelope.body, codec.MUST_BE_SIGNED):
            self._check_age(envelope)
        return envelope

    def _check_age(self, envelope: Envelope) -> None:
        """Raise BadMessage for an order that came again after the server gave another: somebody may have kept it.

        An acknowledgement names the task that it is about and stays true. Orders nobody signed could be made up anew.
        """
        body, order = envelope.body, codec.Order(envelope.epoch, envelope.sequence)
        if isinstance(body, Ack) or self._identity.verify is None:
            return
        # What goes to all devices of an edge may be older than what those of another one were told.
        kind = (type(body), body.shard if isinstance(body, Task) else None)
        old = order < self._latest[kind] if kind in self._latest else order.epoch == 0 and self._is_stale(envelope)
        if old:
            raise BadMessage(f"{type(body).__name__.lower()} is older than what the server said since")
        if order.epoch:
            self._latest[kind] = order

    def _is_stale(self, envelope: Envelope) -> bool:
        """Whether an order without a number is much older than the newest one.

        The server's time goes on like ours: one order that was stamped days ahead does not make all others old.
        """
        now_s = self._clock()
        if self._newest_s is not None:
            if envelope.sent_s < self._newest_s - STALE_S:
                return True
            self._newest_s += now_s - self._newest_since_s
        newest_s = envelope.sent_s if self._newest_s is None else self._newest_s
        self._newest_s = min(max(newest_s, envelope.sent_s), newest_s + STALE_S / 2)
        self._newest_since_s = now_s
        return False

    def is_for_us(self, task: Task) -> bool:
        """Whether a task is for this life of the device, or for all devices at the edge where it is."""
        return task.boot == self._identity.boot or (task.shard is not None and task.shard == self.fleet)

    def is_over(self, dismiss: Dismiss) -> bool:
        """Whether the server is done with its run; IdentityTaken or DeviceError when it turned this device away."""
        if dismiss.boot != self._identity.boot:
            return False
        problem = f"the server turned {self._identity.device} away: {dismiss.reason}"
        if dismiss.why == "identity_taken":
            raise IdentityTaken(problem)
        if dismiss.why == "misfit":
            raise DeviceError(problem)
        log.info("the server is done: %s", dismiss.reason)
        return True

    @property
    def has_others(self) -> bool:
        """Whether there is somewhere else to go."""
        return len(self._homes) > 1

    def is_silent(self, *, connected: bool) -> bool:
        """Whether to go elsewhere: there is another home, and this one says nothing over a link that stands."""
        if not self.has_others or not connected:
            self._heard_s = self._clock()
        return self._clock() - self._heard_s >= self._identity.patience_s

    def move(self) -> None:
        """Belong to the next edge of the list."""
        self._place = (self._place + 1) % len(self._homes)
        self._heard_s = self._clock()
