"""Which devices come by way of an edge server, and which edge may speak for whom."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fedwright.protocol import codec
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import Answer, Carried, Envelope, Gone, Refusal, Report, Update

MaySpeak = Callable[[str, str], bool]
"""Whether an edge may speak for a device."""


def anybody(edge: str, device: str) -> bool:
    """Without enrolment every edge is believed (development only)."""
    del edge, device
    return True


@dataclass(frozen=True)
class Passage:
    """A device's way to us: the edge, the boot that reported, and when that report was made."""

    edge: str
    boot: str
    sent_s: float


@dataclass
class Edges:
    """The edges that reported and the devices behind each."""

    may_speak: MaySpeak = anybody
    _boots: dict[str, str] = field(default_factory=dict)
    _passages: dict[str, Passage] = field(default_factory=dict)

    def edge_of(self, device: str) -> str | None:
        """The edge that a device is reached through; None for one that is reached directly."""
        passage = self._passages.get(device)
        return None if passage is None else passage.edge

    def is_edge(self, name: str) -> bool:
        """Whether an edge of that name has reported."""
        return name in self._boots

    def hear(self, edge: str, boot: str) -> None:
        """An edge reports."""
        self._boots[edge] = boot

    def open(self, edge: str, carried: Carried) -> Envelope:
        """What a device says through its edge; BadMessage when the edge has no right to carry it."""
        if not self.may_speak(edge, carried.device):
            raise BadMessage(
                f"it speaks for {carried.device}, which is not enrolled for it; enroll the device with --edge {edge}"
            )
        envelope = codec.decode(carried.payload)
        if envelope.sender != carried.device:
            raise BadMessage(f"message carried for {carried.device} claims to be from {envelope.sender}")
        if not isinstance(envelope.body, Report | Update | Refusal | Gone | Answer):
            raise BadMessage(f"an edge does not carry a {type(envelope.body).__name__.lower()}")
        return envelope

    def arrive(self, device: str, edge: str | None, envelope: Envelope) -> Passage | None:
        """A device reports by a way (None: directly); returns the other way that it had until now."""
        before = self._passages.get(device)
        if edge is None:
            self._passages.pop(device, None)
        else:
            self._passages[device] = Passage(edge, envelope.boot, envelope.sent_s)
        return before if before is not None and before.edge != edge else None

    def is_stale(self, device: str, edge: str, envelope: Envelope) -> bool:
        """Whether another edge has brought later news of this device than what this one brings."""
        passage = self._passages.get(device)
        return passage is not None and passage.edge != edge and envelope.sent_s < passage.sent_s

    def lose(self, edge: str, boot: str) -> list[tuple[str, str]]:
        """An edge's connection broke: the devices behind it, each with its boot; they may come back another way."""
        if self._boots.get(edge) != boot:
            return []
        return sorted((device, passage.boot) for device, passage in self._passages.items() if passage.edge == edge)
