"""Uploads of devices that fall silent do not keep the others' from coming in."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import BlobRef, Chunk, Get, Gone
from fedwright.server_runtime.transport import upload_puller as module
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from fedwright.server_runtime.transport.upload_puller import MAX_PULLS, STALL_S, Pulled
from helpers.fleet import FLEET

SILENT = [f"silent-{number}" for number in range(MAX_PULLS)]


class Bench:
    """A server whose time is set by hand, and devices that do only what they are told."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 100.0
        broker = MemoryBroker()
        self.devices = broker.link("devices")
        self.server = DeviceChannel(broker.link("server"), FLEET, blobs=BlobStore(folder), clock=lambda: self.now_s)
        self.blobs: dict[str, SimpleNamespace] = {}

    def announce(self, device: str, *, chunks: int = 2, inline: bool = False) -> BlobRef:
        """A device says that it has a blob, and the server is told to fetch it."""
        data = os.urandom(1024 * chunks)
        ref = make_ref(data, chunk_bytes=1024, inline=False) if not inline else make_ref(data)
        self.blobs[device] = SimpleNamespace(data=data, ref=ref)
        self.devices.subscribe(topics.down(FLEET, device))
        self.server.pull(device, ref)
        return ref

    def say(self, device: str, message: Chunk | Gone) -> None:
        self.devices.send(topics.up(FLEET, device), codec.encode(message, sender=device, boot=f"boot-{device}"))

    def give(self, device: str, index: int) -> None:
        """A device sends one chunk, asked for or not."""
        blob = self.blobs[device]
        self.say(device, Chunk(blob.ref.sha256, index, blob.data[1024 * index : 1024 * (index + 1)]))

    def asked(self) -> set[str]:
        """The devices that are asked for chunks at one look at the link; `came` is whose blobs are whole by then."""
        self.came = [event.device for event in self.server.poll(0.0) if isinstance(event, Pulled)]
        heard = set()
        while (received := self.devices.receive(0.0)) is not None:
            if isinstance(codec.decode(received.payload).body, Get):
                heard.add(received.topic.rsplit("/", 1)[-1])
        return heard


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_blob_that_came_along_needs_no_turn(bench: Bench) -> None:
    for device in SILENT:
        bench.announce(device)
    bench.asked()

    bench.announce("small", inline=True)
    bench.asked()

    assert bench.came == ["small"]


def test_a_blob_that_is_here_already_needs_no_turn(bench: Bench) -> None:
    bench.announce("first")
    bench.asked()
    for index in (0, 1):
        bench.give("first", index)
    bench.asked()
    for device in SILENT:
        bench.announce(device)
    bench.asked()

    bench.server.pull("second", bench.blobs["first"].ref)
    bench.asked()

    assert bench.came == ["second"]


def test_devices_that_send_nothing_lose_their_turn_to_those_who_wait(bench: Bench) -> None:
    for device in SILENT:
        bench.announce(device)
    bench.announce("ninth")
    assert bench.asked() == set(SILENT)

    bench.now_s += STALL_S / 2
    bench.give(SILENT[0], 0)
    bench.asked()
    bench.now_s += STALL_S / 2

    assert "ninth" in bench.asked()
    for index in (0, 1):
        bench.give("ninth", index)
    bench.asked()
    assert bench.came == ["ninth"]


def test_a_slow_device_that_lost_its_turn_is_still_listened_to(bench: Bench) -> None:
    for device in SILENT:
        bench.announce(device)
    bench.announce("ninth")
    bench.asked()
    bench.now_s += STALL_S
    bench.asked()

    for index in (0, 1):
        bench.give(SILENT[3], index)
    bench.asked()

    assert bench.came == [SILENT[3]]


def test_a_large_blob_that_does_not_come_does_not_hold_up_the_small_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PULL_BYTES", 4096)
    bench.announce("large", chunks=5)
    bench.announce("small")
    assert bench.asked() == {"large"}

    bench.now_s += STALL_S

    assert "small" in bench.asked()


def test_a_device_that_leaves_frees_its_turn_at_once(bench: Bench) -> None:
    for device in SILENT:
        bench.announce(device)
    bench.announce("ninth")
    bench.asked()
    bench.give(SILENT[0], 0)
    bench.asked()

    bench.say(SILENT[0], Gone())
    bench.asked()
    assert bench.asked() == {"ninth"}

    # It comes back, says again what it has, and goes on where it was.
    bench.server.pull(SILENT[0], bench.blobs[SILENT[0]].ref)
    bench.say(SILENT[1], Gone())
    bench.asked()
    bench.asked()
    bench.give(SILENT[0], 1)
    bench.asked()
    assert bench.came == [SILENT[0]]
