"""What a broker lets through, found out by trying: how large messages may be, and how deep topics."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol import topics
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import Link

KIB = 1024
# A chunk travels with a head of some hundred bytes; these are sizes that fleet.chunk_kib may have.
SIZES_KIB = (16, 64, 120, 250, 512, 1024)
HEAD_BYTES = 512
# The deepest topic that Fedwright uses, and what some brokers end at.
DEPTHS = (4, 8, 16)
WAIT_S = 5.0


@dataclass(frozen=True)
class BrokerLimits:
    """largest_kib: of the chunks that were tried, 0: none came back. depth: levels of topics, 0: not found out.

    version: of MQTT, as its library numbers them (4: 3.1.1, 5: 5).
    """

    largest_kib: int
    depth: int
    version: int

    @property
    def echoes(self) -> bool:
        """Whether anything came back; an access list may know no probes."""
        return self.largest_kib > 0


def find_limits(connect: Callable[[], Link], device: str) -> BrokerLimits:
    """Try a broker; each trial has a connection of its own, because a broker ends one that asks for too much."""
    base = topics.probe(device)
    largest = 0
    for size in SIZES_KIB:
        if not _comes_back(connect, base, size * KIB + HEAD_BYTES):
            break
        largest = size
    depth = 0
    for levels in DEPTHS if largest else ():
        deeper = levels - len(base.split("/"))
        if deeper > 0 and not _comes_back(connect, "/".join([base, *["x"] * deeper]), KIB):
            break
        depth = levels
    link = connect()
    try:
        return BrokerLimits(largest, depth, int(getattr(link, "version", 0)))
    finally:
        link.close()


def _comes_back(connect: Callable[[], Link], topic: str, size_bytes: int) -> bool:
    """Whether a message to oneself arrives."""
    payload = os.urandom(size_bytes)
    link = connect()
    try:
        link.subscribe(topic)
        # Not kept for a broker that hung up: it would hang up again.
        link.send(topic, payload, reliable=False)
        until_s = time.monotonic() + WAIT_S
        while link.connects == 1 and (left_s := until_s - time.monotonic()) > 0:
            received = link.receive(min(left_s, 0.2))
            if received is not None and received.payload == payload:
                return True
        return False
    except LinkError:
        return False
    finally:
        link.close()
