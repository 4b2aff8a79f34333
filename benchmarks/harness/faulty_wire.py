"""A bad stretch between devices and a real broker: MQTT packets come late, twice, out of order, damaged or not at all.

Reliable messages are never lost on the way, as TCP and the broker see to that; a damaged copy of one comes beside it.
Chunks, which are sent unreliably and named by their hashes, may be damaged themselves or lost.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress

from fedwright.protocol import codec
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.link.shaping import Proxy
from fedwright.protocol.messages import Chunk

PUBLISH = 0x30
QOS_BITS = 0x06
# Long enough that many others overtake, short enough for a run of seconds.
LATE_S = (0.01, 0.4)
FAULTS = ("late", "twice", "garbled copy", "chunk damaged", "chunk lost")


class FaultyWire(Proxy):
    """A proxy that knows MQTT 5 packets and mistreats one of `every` messages."""

    def __init__(self, host: str, port: int, *, seed: int, every: int) -> None:
        super().__init__(host, port, seed=seed)
        self._rng = random.Random(f"wire {seed}")
        self._every = every
        self.faults: Counter[str] = Counter()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late: set[asyncio.TimerHandle] = set()
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    packet = await _packet(reader)
                    for part, delay_s in self._treated(packet):
                        if delay_s:
                            late.add(self._loop.call_later(delay_s, _write, writer, part))
                        else:
                            writer.write(part)
                    await writer.drain()
        finally:
            for handle in late:
                handle.cancel()

    def _treated(self, packet: bytes) -> list[tuple[bytes, float]]:
        """What goes out for a packet, each part after so many seconds."""
        if packet[0] & 0xF0 != PUBLISH or self._rng.randrange(self._every):
            return [(packet, 0.0)]
        start = payload_start(packet)
        is_chunk = _is_chunk(packet[start:])
        fault = self._rng.choice(FAULTS if is_chunk else FAULTS[:3])
        self.faults[fault] += 1
        if fault == "late":
            return [(packet, self._rng.uniform(*LATE_S))]
        if fault == "twice":
            return [(packet, 0.0), (packet, self._rng.choice([0.0, LATE_S[1]]))]
        if fault == "garbled copy":
            return [(self._garbled(packet, start), 0.0), (packet, 0.0)]
        return [] if fault == "chunk lost" else [(self._damaged(packet, start), 0.0)]

    def _damaged(self, packet: bytes, start: int) -> bytes:
        """One bit of the second half of a chunk turned over; its data stand there."""
        place = self._rng.randrange((start + len(packet)) // 2, len(packet))
        return packet[:place] + bytes([packet[place] ^ 1 << self._rng.randrange(8)]) + packet[place + 1 :]

    def _garbled(self, packet: bytes, start: int) -> bytes:
        """The same length of bytes that are no message: noise behind a head that msgpack never has."""
        noise = bytes([0xC1]) + self._rng.randbytes(len(packet) - start)
        # At QoS 0, so that its acknowledgement is not taken for that of the message itself.
        return bytes([packet[0] & ~QOS_BITS]) + _behind_head(packet, noise)


async def _packet(reader: asyncio.StreamReader) -> bytes:
    """One MQTT packet from its first byte to its last."""
    head = bytearray(await reader.readexactly(2))
    while head[-1] & 0x80:
        head += await reader.readexactly(1)
    size, _ = number_at(bytes(head), 1)
    return bytes(head) + await reader.readexactly(size)


def _write(writer: asyncio.StreamWriter, part: bytes) -> None:
    if not writer.is_closing():
        writer.write(part)


def number_at(packet: bytes, place: int) -> tuple[int, int]:
    """A whole number of MQTT, seven bits to the byte, and where it ends."""
    value = shift = 0
    while True:
        byte = packet[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place


def payload_start(packet: bytes) -> int:
    """Where the payload of a PUBLISH of MQTT 5 begins: behind topic, packet id and properties."""
    _, place = number_at(packet, 1)
    place += 2 + int.from_bytes(packet[place : place + 2], "big")
    place += 2 if packet[0] & QOS_BITS else 0
    properties, place = number_at(packet, place)
    return place + properties


def _behind_head(packet: bytes, payload: bytes) -> bytes:
    """What follows the first byte of a PUBLISH on the same topic without packet id and properties."""
    _, place = number_at(packet, 1)
    topic = packet[place : place + 2 + int.from_bytes(packet[place : place + 2], "big")]
    body = topic + b"\0" + payload
    return _number(len(body)) + body


def _number(value: int) -> bytes:
    parts = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        parts.append(low | (0x80 if value else 0))
        if not value:
            return bytes(parts)


def _is_chunk(payload: bytes) -> bool:
    try:
        return isinstance(codec.decode(payload).body, Chunk)
    except BadMessage:
        return False
