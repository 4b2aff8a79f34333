"""A link that misbehaves as real ones do: late, twice, out of order, and with damaged or missing chunks."""

import random
from collections import deque
from typing import Any

from fedwright.protocol import codec
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.link.base import Link, Received
from fedwright.protocol.messages import Chunk


class FaultyLink:
    """Wraps a link and mistreats what arrives; reliable messages are never lost, only delayed and repeated."""

    def __init__(self, link: Link, *, seed: str, rate: float) -> None:
        self._link = link
        self._random = random.Random(seed)
        self._rate = rate
        self._held: deque[Received] = deque()
        self.faults = {"twice": 0, "late": 0, "damaged": 0, "lost": 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def receive(self, timeout_s: float) -> Received | None:
        """The next message, after fate had its say."""
        received = self._link.receive(0.02 if self._held else timeout_s)
        if received is None:
            return self._held.popleft() if self._held else None
        fate = self._random.random() / self._rate
        if fate < 0.25:
            self.faults["twice"] += 1
            self._held.append(received)
        elif fate < 0.5:
            self.faults["late"] += 1
            self._held.append(received)
            return self.receive(timeout_s)
        elif fate < 1.0 and _is_chunk(received.payload):
            kind = "lost" if fate < 0.75 else "damaged"
            self.faults[kind] += 1
            return None if kind == "lost" else Received(received.topic, _damaged(received.payload))
        return received


def _is_chunk(payload: bytes | memoryview) -> bool:
    try:
        return isinstance(codec.decode(payload).body, Chunk)
    except BadMessage:
        return False


def _damaged(payload: bytes | memoryview) -> bytes:
    envelope = codec.decode(payload)
    whole = envelope.body
    assert isinstance(whole, Chunk)
    data = bytearray(whole.data)
    data[len(data) // 2] ^= 0xFF
    chunk = Chunk(whole.sha256, whole.index, memoryview(bytes(data)))
    return codec.encode(chunk, sender=envelope.sender, boot=envelope.boot)
