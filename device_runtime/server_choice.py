"""Who a device is, and whom it listens to: one server, or the first edge of a list that is alive."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol import codec, topics
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import Envelope

# A broker may hold a message while a link is down, but an hour-old order is not one the server still means.
STALE_S = 3600.0
# An edge says every two seconds that it is alive.
PATIENCE_S = 15.0


@dataclass(frozen=True)
class DeviceIdentity:
    """Who this agent is on the wire, and how it knows its server.

    boot: new at each start of the process; orders for another boot are not for us. verify: checks the server's
    signature; None takes any server's word (development only). further: edges to go to, in turn, when the fleet's
    own says nothing for patience_s; an edge serves the fleet of its own name.
    """

    device: str
    fleet: str
    boot: str
    verify: codec.Verify | None = None
    further: tuple[str, ...] = ()
    patience_s: float = PATIENCE_S


class ServerChoice:
    """The server that this device belongs to now."""

    def __init__(self, identity: DeviceIdentity, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._homes = (identity.fleet, *identity.further)
        self._place = 0
        self._clock = clock
        self._heard_s = clock()
        self._newest_s = 0.0

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

    def open(self, topic: str, payload: bytes | memoryview) -> Envelope | None:
        """A message for this device; None for one of a server it has left, BadMessage for one it must not obey."""
        if topic not in self.down:
            return None
        self._heard_s = self._clock()
        envelope = codec.decode(payload, verify=self._identity.verify)
        if isinstance(envelope.body, codec.MUST_BE_SIGNED):
            # Somebody may have kept a signed order to send it again; the newest one tells the server's time.
            if envelope.sent_s < self._newest_s - STALE_S:
                raise BadMessage(f"{type(envelope.body).__name__.lower()} is older than what the server said since")
            self._newest_s = max(self._newest_s, envelope.sent_s)
        return envelope

    def is_silent(self, *, connected: bool) -> bool:
        """Whether to go elsewhere: there is another home, and this one says nothing over a link that stands."""
        if len(self._homes) == 1 or not connected:
            self._heard_s = self._clock()
        return self._clock() - self._heard_s >= self._identity.patience_s

    def move(self) -> None:
        """Belong to the next edge of the list."""
        self._place = (self._place + 1) % len(self._homes)
        self._heard_s = self._clock()
