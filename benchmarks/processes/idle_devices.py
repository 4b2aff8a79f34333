"""Many devices in one process that speak the real protocol over connections of their own, and train nothing.

Each answers every task with a change of the right shapes that is its own. They share what a device keeps on its disk
(artifacts) and the processor; all else is as with agents: reports, acknowledgements, signed bytes, QoS 1.
Called with a broker's port, how many devices, and the fleets that they spread over; ends when its input does.
"""

import os
import resource
import selectors
import socket
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, deltas, topics
from fedwright.protocol.artifact import returned_shapes
from fedwright.protocol.blobs import BlobStore, Download, make_ref
from fedwright.protocol.errors import LinkError
from fedwright.protocol.messages import (
    Ack,
    Board,
    Challenge,
    Chunk,
    DataSummary,
    Get,
    Message,
    Report,
    Stats,
    Task,
    Update,
)
from fedwright.protocol.rendezvous import preferred

FEATURES, CLASSES = 8, 3
# Connections that are opened at the same time; the broker's queue of new ones is short.
AT_ONCE = 50
# What an edge says every other second is shorter, and what devices act on longer.
SHORTEST_BYTES = 150
KEEP_ALIVE_S = 600
READ_BYTES = 256 * 1024
BOARD = Board("idle", "x86_64", 1, 10**9, "none", 1)
STATS = Stats(samples=20, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def text(value: str | bytes) -> bytes:
    """A field of a packet with its length before it."""
    packed = value.encode() if isinstance(value, str) else value
    return len(packed).to_bytes(2, "big") + packed


def packet(kind: int, body: bytes) -> bytes:
    """One packet of MQTT 3.1.1; kind: its first byte."""
    length, size = bytearray(), len(body)
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (128 if size else 0))
        if not size:
            return bytes([kind]) + bytes(length) + body


def packets(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Whole packets at the start of a buffer, which loses them."""
    while len(buffer) >= 2:
        size, shift, place = 0, 0, 1
        while place < len(buffer):
            digit = buffer[place]
            size |= (digit & 127) << shift
            shift, place = shift + 7, place + 1
            if digit < 128:
                break
        else:
            return
        if len(buffer) < place + size:
            return
        body = bytes(buffer[place : place + size])
        kind = buffer[0]
        del buffer[: place + size]
        yield kind, body


@dataclass
class Library:
    """What all devices here know of artifacts; one of them fetches each."""

    blobs: BlobStore
    coming: dict[str, Download] = field(default_factory=dict)
    waiting: dict[str, list[tuple["Device", Task]]] = field(default_factory=dict)
    # Devices that have something to send because of what another one heard.
    woken: list["Device"] = field(default_factory=list)


class Device:
    """One device on one connection."""

    def __init__(self, name: str, fleet: str, library: Library, port: int) -> None:
        self.name, self.fleet = name, fleet
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self._library = library
        self._boot = codec.new_id()
        self._number = 0
        self._in, self.out = bytearray(), bytearray()
        connect = text("MQTT") + bytes([4, 2]) + KEEP_ALIVE_S.to_bytes(2, "big") + text(name)
        self.out += packet(0x10, connect)
        for topic in (topics.down(fleet, name), topics.shared(fleet)):
            self.out += packet(0x82, self._next() + text(topic) + b"\1")
        self.report()

    def report(self) -> None:
        """Say that this device is here."""
        data = DataSummary(samples=STATS.samples, holdout=4, input_shape=[FEATURES], classes=CLASSES)
        self.say(Report("idle", BOARD, 10**9, data))

    def say(self, message: Message) -> None:
        """Publish with QoS 1."""
        payload = codec.encode(message, sender=self.name, boot=self._boot)
        self.out += packet(0x32, text(topics.up(self.fleet, self.name)) + self._next() + payload)

    def read(self) -> None:
        """Take what came."""
        came = self.socket.recv(READ_BYTES)
        if not came:
            raise LinkError(f"the broker closed the connection of {self.name}; see its log")
        self._in += came
        for kind, body in packets(self._in):
            if kind >> 4 == 3:
                self._take_publish(kind, body)

    def write(self) -> None:
        """Send what waits, as far as it goes."""
        sent = self.socket.send(self.out)
        del self.out[:sent]

    def _next(self) -> bytes:
        self._number = self._number % 65_535 + 1
        return self._number.to_bytes(2, "big")

    def _take_publish(self, kind: int, body: bytes) -> None:
        start = 2 + int.from_bytes(body[:2], "big")
        if kind & 6:
            self.out += packet(0x40, body[start : start + 2])
            start += 2
        if len(body) - start >= SHORTEST_BYTES or b"challenge" in body[start:]:
            self._obey(codec.decode(body[start:]).body)

    def _obey(self, body: Message) -> None:
        if isinstance(body, Challenge):
            self.report()
        elif isinstance(body, Task) and (body.boot == self._boot or body.shard == self.fleet):
            self.say(Ack(body.task))
            self._begin(body)
        elif isinstance(body, Chunk):
            self._take_chunk(body)

    def _begin(self, task: Task) -> None:
        library, name = self._library, task.artifact.sha256
        if library.blobs.has(name):
            self._answer(task)
            return
        library.waiting.setdefault(name, []).append((self, task))
        if name not in library.coming:
            library.coming[name] = Download(library.blobs, task.artifact)
            self.say(Get(name, list(range(len(task.artifact.chunks)))))

    def _take_chunk(self, chunk: Chunk) -> None:
        library = self._library
        download = library.coming.get(chunk.sha256)
        if download is None:
            return
        download.accept(chunk.index, chunk.data)
        if download.done:
            del library.coming[chunk.sha256]
            download.finish()
            for device, task in library.waiting.pop(chunk.sha256):
                device._answer(task)
                library.woken.append(device)

    def _answer(self, task: Task) -> None:
        tensors = None
        if task.returns.weights == "delta":
            manifest = artifacts.unpack(self._library.blobs.read(task.artifact.sha256)).manifest
            rng = np.random.default_rng([*self.name.encode(), task.round])
            shapes = returned_shapes(manifest, task.returns)
            own = {name: 1e-3 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
            tensors = make_ref(deltas.encode(own))
        stats = msgspec.structs.replace(STATS, holdout=4, correct_before=1, correct_after=2)
        self.say(Update(task.task, task.round, stats, tensors))


def serve(port: int, names: list[str], fleets: list[str], folder: str) -> None:
    """Speak for all devices until the standard input ends."""
    library = Library(BlobStore(Path(folder)))
    choose = selectors.DefaultSelector()
    choose.register(sys.stdin, selectors.EVENT_READ)
    to_come = deque(names)
    while True:
        for _ in range(min(AT_ONCE, len(to_come))):
            name = to_come.popleft()
            device = Device(name, preferred(fleets, name)[0], library, port)
            choose.register(device.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, device)
        for key, events in choose.select(0 if to_come else 1.0):
            if key.data is None:
                return
            device = key.data
            if events & selectors.EVENT_READ:
                device.read()
            if device.out and events & selectors.EVENT_WRITE:
                device.write()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if device.out else 0)
            if wanted != key.events:
                choose.modify(device.socket, wanted, device)
        while library.woken:
            device = library.woken.pop()
            choose.modify(device.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, device)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    where, first, count, place = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.makedirs(place, exist_ok=True)
    serve(where, [f"d{first + number}" for number in range(count)], sys.argv[5:], place)
