"""Brokers and peers to try links on: in memory, mosquitto, amqtt."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from fedwright.protocol.link import Link, Received, connect
from fedwright.protocol.link.broker import Broker, Kind
from fedwright.protocol.link.memory import MemoryBroker, MemoryLink
from fedwright.server_runtime.fleet.trust import Authority, secure_broker
from helpers.tools import require_tool

WAIT_S = 20.0

_PEER = """
import sys
from fedwright.protocol.link import connect
link = connect(sys.argv[1], client_id="doomed", will=(sys.argv[2], sys.argv[3].encode()))
print("ready", flush=True)
link.receive(60)
"""


class Bench(Protocol):
    """A broker that can be killed, and links to it."""

    def link(self, name: str, *, will: tuple[str, bytes] | None = None) -> Link: ...

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def die_with_will(self, topic: str, payload: bytes) -> None: ...

    def close(self) -> None: ...


class MemoryBench:
    """The in-process twin."""

    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._links: list[MemoryLink] = []

    def link(self, name: str, *, will: tuple[str, bytes] | None = None) -> Link:
        self._links.append(self._broker.link(name, will=will))
        return self._links[-1]

    def kill(self) -> None:
        self._broker.stop()

    def restart(self) -> None:
        self._broker.start()

    def die_with_will(self, topic: str, payload: bytes) -> None:
        self._broker.link("doomed", will=(topic, payload)).drop()

    def close(self) -> None:
        for link in self._links:
            link.close()


class MqttBench:
    """A real broker process."""

    def __init__(self, kind: Kind) -> None:
        if kind == "mosquitto":
            require_tool("mosquitto")
        self.broker = Broker(kind=kind).start()
        self._links: list[Link] = []

    def link(self, name: str, *, will: tuple[str, bytes] | None = None) -> Link:
        self._links.append(connect(self.broker.url, client_id=name, will=will))
        return self._links[-1]

    def kill(self) -> None:
        self.broker.kill()
        wait_until(lambda: not any(link.connected for link in self._links))

    def restart(self) -> None:
        self.broker.restart()

    def die_with_will(self, topic: str, payload: bytes) -> None:
        command = [sys.executable, "-c", _PEER, self.broker.url, topic, payload.decode()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as peer:
            assert peer.stdout is not None
            assert peer.stdout.readline() == b"ready\n"
            peer.kill()

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.broker.stop()


def make_bench(kind: str) -> Bench:
    """A bench by name."""
    return MemoryBench() if kind == "memory" else MqttBench("mosquitto" if kind == "mosquitto" else "amqtt")


@contextmanager
def closed_broker(authority: Authority, fleet: str) -> Iterator[Broker]:
    """A broker that asks for certificates of this authority."""
    require_tool("mosquitto")
    with Broker(tls=secure_broker(authority, fleet=fleet, hosts=["127.0.0.1"])) as running:
        yield running


def take(link: Link, count: int, *, timeout_s: float = WAIT_S) -> list[Received]:
    """The next `count` messages; wake-ups in between (the link came back) are passed over."""
    taken: list[Received] = []
    deadline_s = time.monotonic() + timeout_s
    while len(taken) < count and time.monotonic() < deadline_s:
        message = link.receive(max(0.0, deadline_s - time.monotonic()))
        if message is not None:
            taken.append(message)
    return taken


def wait_until(holds: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
    """Wait for a condition that no event announces."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)
