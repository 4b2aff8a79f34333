"""Which devices come by way of an edge server, and which edge may speak for whom."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from fedwright.protocol import codec
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.link.base import Buffer
from fedwright.protocol.messages import Carried, Envelope, Gone, Refusal, Report, SumAnswer, Update

MaySpeak = Callable[[str, str], bool]
"""Whether an edge may speak for a device."""
VerifyDevice = Callable[[str, bytes, bytes], bool]
"""Whether a device signed a message."""


def anybody(*names: str) -> bool:
    """Without enrolment every edge is believed (development only)."""
    del names
    return True


@dataclass(frozen=True)
class EdgeRights:
    """Who was enrolled as an edge, and for which devices each may speak."""

    is_enrolled: Callable[[str], bool] = anybody
    may_speak: MaySpeak = anybody


ANYBODY = EdgeRights()


@dataclass(frozen=True)
class Passage:
    """A device's way to us: the edge (None: directly), the boot that reported, and where that report stands.

    lost: the connection of the device or of its edge broke; it may come back any way.
    """

    edge: str | None
    boot: str
    sequence: int
    sent_s: float
    lost: bool = False


@dataclass
class EdgeRoutes:
    """The edges that reported and the devices behind each."""

    rights: EdgeRights = ANYBODY
    # None takes a device's word unsigned (development only).
    verify_device: VerifyDevice | None = None
    _boots: dict[str, str] = field(default_factory=dict)
    _passages: dict[str, Passage] = field(default_factory=dict)
    # Boards that report under an id which another one has, by another way; who is right is for others to find out.
    _claims: dict[str, Passage] = field(default_factory=dict)

    def edge_of(self, device: str) -> str | None:
        """The edge that a device is reached through; None for one that is reached directly."""
        passage = self._passages.get(device)
        return None if passage is None else passage.edge

    def way_to(self, device: str, boot: str) -> str | None:
        """The edge that one boot of a device is reached through, also while its id is contested."""
        claim = self._claims.get(device)
        return claim.edge if claim is not None and claim.boot == boot else self.edge_of(device)

    def settle(self, device: str, boot: str) -> None:
        """This boot has the id: its way is the device's way from now on."""
        claim = self._claims.get(device)
        if claim is not None and claim.boot == boot:
            self._passages[device] = self._claims.pop(device)

    def is_edge(self, name: str) -> bool:
        """Whether an edge of that name has reported."""
        return name in self._boots

    def is_alive(self, name: str, boot: str) -> bool:
        """Whether this is the boot that an edge of that name reported with last."""
        return self._boots.get(name) == boot

    def hear(self, edge: str, boot: str) -> None:
        """An edge reports."""
        self._boots[edge] = boot

    def open(self, edge: str, carried: Carried) -> Envelope:
        """What a device says through its edge; BadMessage when the edge has no right to carry it."""
        if not self.rights.may_speak(edge, carried.device):
            raise BadMessage(
                f"it speaks for {carried.device}, which is not enrolled for it; enroll the device with --edge {edge}"
            )
        envelope = self.decoded(carried.device, carried.payload)
        if envelope.sender != carried.device:
            raise BadMessage(f"message carried for {carried.device} claims to be from {envelope.sender}")
        if not isinstance(envelope.body, Report | Update | Refusal | Gone | SumAnswer):
            raise BadMessage(f"an edge does not carry a {type(envelope.body).__name__.lower()}")
        return envelope

    def decoded(self, device: str, payload: Buffer) -> Envelope:
        """What a device said; BadMessage when it had to sign it and did not."""
        verify = None if self.verify_device is None else partial(self.verify_device, device)
        return codec.decode(payload, verify=verify, signed=codec.SIGNED_BY_DEVICES)

    def arrive(self, device: str, edge: str | None, envelope: Envelope) -> Passage | None:
        """A device reports by a way (None: directly); returns the other way that it had until now."""
        before, now = self._passages.get(device), Passage(edge, envelope.boot, envelope.sequence, envelope.sent_s)
        other_way = before is not None and before.edge != edge
        if before is not None and other_way and before.boot != now.boot and not before.lost:
            self._claims[device] = now
            return None
        self._passages[device] = now
        return before if other_way else None

    def is_stale(self, device: str, edge: str, envelope: Envelope) -> bool:
        """Whether a device has come another way since it said what this edge brings.

        Two lives of a device have two clocks, or none: which is which is found out by asking it.
        """
        passage = self._passages.get(device)
        if passage is None or passage.edge == edge or passage.boot != envelope.boot:
            return False
        if passage.sequence and envelope.sequence:
            return envelope.sequence < passage.sequence
        return envelope.sent_s < passage.sent_s

    def lose(self, name: str, boot: str) -> list[tuple[str, str]]:
        """A connection broke: the devices behind it, if it was an edge's, each with its boot."""
        passage = self._passages.get(name)
        if passage is not None and passage.boot == boot:
            self._passages[name] = replace(passage, lost=True)
        if self._boots.get(name) != boot:
            return []
        behind = [(device, passage) for device, passage in sorted(self._passages.items()) if passage.edge == name]
        self._passages.update({device: replace(passage, lost=True) for device, passage in behind})
        return [(device, passage.boot) for device, passage in behind]
