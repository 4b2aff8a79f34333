"""One device cannot keep the server busy, and strangers cannot fill its memory."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.base import Received
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Board, Carried, Chunk, DataSummary, Report
from fedwright.server_runtime.transport import message_limits as module
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from fedwright.server_runtime.transport.message_limits import (
    REPORT_BYTES,
    REPORTS_PER_MINUTE,
    REPORTS_TOGETHER,
    WASTE_PER_MINUTE,
    WORDS_PER_MINUTE,
    MessageLimits,
)
from helpers.fleet import FLEET

BOARD = Board("board", "arm", 1, 1, "onnxruntime", 1)


def report(counts: Any = ()) -> Any:
    return Report("1", BOARD, 1, DataSummary(1, 0, [2], 2, list(counts)))


class Bench:
    """A server whose time is set by hand."""

    def __init__(self, folder: Any) -> None:
        self.now_s = 0.0
        broker = MemoryBroker()
        self.link = broker.link("devices")
        self.server = DeviceChannel(broker.link("server"), FLEET, blobs=BlobStore(folder), clock=lambda: self.now_s)

    def say(self, device: Any, message: Any) -> None:
        self.link.send(topics.up(FLEET, device), codec.encode(message, sender=device, boot="b"))

    def heard(self) -> Any:
        found = []
        while events := self.server.poll(0.0):
            found += [event.device for event in events]
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    return Bench(tmp_path)


def test_one_device_reports_so_often_and_no_more(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3 * REPORTS_PER_MINUTE):
        bench.say("loud", report())
    bench.say("quiet", report())

    assert bench.heard() == ["loud"] * REPORTS_PER_MINUTE + ["quiet"]
    assert caplog.text.count("it says more in a minute than a device has to say") == 1

    bench.now_s = 10.0
    bench.say("loud", report())
    assert bench.heard() == ["loud"]


def test_twenty_large_reports_of_strangers_are_not_all_kept(bench: Any) -> None:
    counts = [70_000 + number for number in range(180_000)]
    for number in range(30):
        bench.say(f"stranger-{number}", report(counts))
    bench.say("honest", report([1, 2]))

    heard = bench.heard()
    assert 0 < len(heard) - 1 < 20
    assert heard[-1] == "honest"


def test_many_reports_of_a_middle_size_are_not_all_kept_and_one_that_comes_again_counts_once() -> None:
    limits = MessageLimits(clock=lambda: 0.0)
    taken = [limits.problem(f"d{number}", report(), 60_000) is None for number in range(3000)]

    assert sum(taken) == 64 * 1024**2 // 60_000
    assert all(limits.problem(f"d{number}", report(), 60_000) is None for number in range(50))
    assert limits.problem("d0", report(), 900) is None
    assert limits.problem("d2999", report(), 60_000) is None


def test_a_report_that_is_too_large_is_not_taken(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    bench.say("huge", report(range(1_000_000)))

    assert bench.heard() == []
    assert f"is over the limit of {REPORT_BYTES}; tell less of its data" in caplog.text


def test_words_come_back_with_time() -> None:
    now_s = 0.0
    limits = MessageLimits(clock=lambda: now_s)
    taken = [limits.problem("a", Ack("t"), 50) is None for _ in range(WORDS_PER_MINUTE + 5)]
    now_s = 30.0

    assert taken.count(True) == WORDS_PER_MINUTE
    assert sum(limits.problem("a", Ack("t"), 50) is None for _ in range(WORDS_PER_MINUTE)) == WORDS_PER_MINUTE // 2


def test_pieces_of_blobs_are_not_words() -> None:
    limits = MessageLimits(clock=lambda: 0.0)
    chunk = Chunk("0" * 64, 0, memoryview(b"x"))

    assert all(limits.problem("a", chunk, 1000) is None for _ in range(2 * WORDS_PER_MINUTE))


@pytest.mark.parametrize("enrolled", [True, False])
def test_only_strangers_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch, enrolled: Any) -> None:
    monkeypatch.setattr(module, "STRANGERS", 3)
    limits = MessageLimits(enrolled=enrolled, clock=lambda: 0.0)
    taken = [limits.problem(f"d{number}", Ack("t"), 50) is None for number in range(5)]

    assert taken == [True] * 3 + [enrolled] * 2


def test_a_device_that_reports_again_takes_no_more_room() -> None:
    limits = MessageLimits(clock=lambda: 0.0)
    size = REPORTS_TOGETHER[64 * 1024] // 20

    assert all(limits.problem("a", report(), size) is None for _ in range(30))


def test_a_device_that_talks_in_vain_is_not_even_read(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    decoded = bench.server._edges.decoded

    def noted(device: str, payload: Any) -> Any:
        read.append(device)
        return decoded(device, payload)

    monkeypatch.setattr(bench.server._edges, "decoded", noted)
    for _ in range(3 * WASTE_PER_MINUTE):
        bench.link.send(topics.up(FLEET, "loud"), b"junk")
    bench.say("quiet", report())

    assert bench.heard() == ["quiet"]
    assert read == ["loud"] * WASTE_PER_MINUTE + ["quiet"]
    bench.now_s = 60.0
    bench.say("loud", report())
    assert bench.heard() == ["loud"]


def test_a_flood_does_not_keep_the_coordinator_waiting(tmp_path: Path) -> None:
    class Flood:
        """A link on which messages come as fast as they are read; the clock goes on with each."""

        connects = 0
        now_s = 0.0

        def subscribe(self, pattern: str) -> None: ...

        def send(self, *words: Any, **options: Any) -> None: ...

        def receive(self, timeout_s: float) -> Received:
            self.now_s += 0.01
            assert self.now_s < 60, "poll does not return"
            return Received(topics.up(FLEET, "loud"), b"junk")

    flood: Any = Flood()
    server = DeviceChannel(flood, FLEET, blobs=BlobStore(tmp_path), clock=lambda: flood.now_s)

    assert server.poll(0.5) == []


def test_an_edge_carries_much_but_reports_like_anybody(bench: Any) -> None:
    for _ in range(2 * REPORTS_PER_MINUTE):
        bench.say("edge", structs.replace(report(), edge=True))
    for number in range(2 * WORDS_PER_MINUTE):
        device = f"d{number % 40}"
        bench.say("edge", Carried(device, codec.encode(report(), sender=device, boot="b")))

    heard = bench.heard()
    assert heard.count("edge") == REPORTS_PER_MINUTE
    assert len(heard) == REPORTS_PER_MINUTE + 2 * WORDS_PER_MINUTE
