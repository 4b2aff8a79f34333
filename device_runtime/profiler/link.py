"""How fast the way to the broker is: a message to oneself and back."""

import os
import socket
import time

from fedwright.protocol import topics
from fedwright.protocol.address import Login, parse_url
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import Link, TlsFiles, connect

SMALL_BYTES, LARGE_BYTES = 64, 128 * 1024
ROUNDS = 3
WAIT_S = 10.0


def measure_link(url: str, *, device: str, tls: TlsFiles | None = None, login: Login | None = None) -> dict[str, float]:
    """Seconds to the broker and back, and bytes per second each way; without an echo only the time to connect."""
    found = {"connect_s": _connect_s(url)}
    topic = topics.probe(device)
    link = connect(url, client_id=f"{device}-probe", tls=tls, login=login)
    try:
        link.subscribe(topic)
        small = [_echo_s(link, topic, SMALL_BYTES) for _ in range(ROUNDS)]
        large = [_echo_s(link, topic, LARGE_BYTES) for _ in range(ROUNDS)]
    except LinkError:
        # A broker whose access list knows no probes sends none back.
        return found
    finally:
        link.close()
    round_s = min(small)
    # There and back: each way carries the payload once.
    rate = 2 * LARGE_BYTES / max(1e-6, min(large) - round_s)
    return found | {"round_trip_s": round_s, "bytes_per_s": rate}


def _connect_s(url: str) -> float:
    address = parse_url(url)
    began_s = time.perf_counter()
    try:
        with socket.create_connection((address.host, address.port), timeout=WAIT_S):
            return time.perf_counter() - began_s
    except OSError as err:
        raise LinkError(f"no broker answers at {address} ({err}); start it or mend --broker") from err


def _echo_s(link: Link, topic: str, size: int) -> float:
    # Random, so that an echo of another measurement is not taken for ours.
    payload = os.urandom(size)
    began_s = time.perf_counter()
    link.send(topic, payload)
    until_s = began_s + WAIT_S
    while time.perf_counter() < until_s:
        received = link.receive(until_s - time.perf_counter())
        if received is not None and received.payload == payload:
            return time.perf_counter() - began_s
    raise LinkError("the broker sent no probe back; its access list may forbid it")
