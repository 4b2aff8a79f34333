"""Chunks that many devices want go out once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.messages import Chunk, Get, Lost
from fedwright.protocol.uploads import Uploads
from fedwright.server_runtime.transport.chunk_server import GATHER_S, MINUTE_S, MOST_LOST, MOST_TIMES, ChunkServer

BLOB = bytes(range(256)) * 16


@pytest.fixture
def bench(tmp_path: Path) -> SimpleNamespace:
    bench = SimpleNamespace(now_s=0.0, sent=[])
    uploads = Uploads(BlobStore(tmp_path))
    bench.ref = uploads.offer(BLOB, chunk_bytes=1024, inline=False)
    bench.serving = ChunkServer(
        uploads, lambda device, message: bench.sent.append((device, message)), clock=lambda: bench.now_s
    )
    return bench


def indices(sent: list[tuple[str | None, Chunk]]) -> list[tuple[str | None, int]]:
    return [(device, message.index) for device, message in sent]


def test_a_blob_of_one_device_is_answered_at_once(bench: SimpleNamespace) -> None:
    bench.serving.request("a", Get(bench.ref.sha256, [0, 2]))
    assert indices(bench.sent) == [("a", 0), ("a", 2)]
    assert bench.serving.due_s() is None


def test_requests_of_many_devices_for_a_common_blob_become_one_message_for_all(bench: Any) -> None:
    bench.serving.offer_common(bench.ref.sha256)
    for device in ("a", "b", "c"):
        bench.serving.request(device, Get(bench.ref.sha256, [0, 1]))
    bench.serving.request("c", Get(bench.ref.sha256, [3]))
    assert bench.sent == []
    assert bench.serving.due_s() == pytest.approx(GATHER_S)

    bench.now_s = GATHER_S
    bench.serving.flush()

    assert indices(bench.sent) == [(None, 0), (None, 1), ("c", 3)]
    assert bench.sent[0][1] == Chunk(bench.ref.sha256, 0, memoryview(BLOB[:1024]))


def test_a_repeated_request_is_answered_again(bench: SimpleNamespace) -> None:
    bench.serving.offer_common(bench.ref.sha256)
    for start in (0.0, 1.0):
        bench.now_s = start
        bench.serving.request("a", Get(bench.ref.sha256, [0]))
        bench.now_s = start + GATHER_S
        bench.serving.flush()
    assert indices(bench.sent) == [("a", 0), ("a", 0)]


def test_a_blob_that_was_never_offered_is_reported_lost(bench: SimpleNamespace) -> None:
    bench.serving.request("a", Get("0" * 64, [0]))
    assert bench.sent == [("a", Lost("0" * 64))]


def test_nobody_gets_a_blob_again_and_again(bench: SimpleNamespace) -> None:
    for _ in range(1000):
        bench.serving.request("greedy", Get(bench.ref.sha256, [0, 1, 2, 3] * 16))
    bench.serving.request("honest", Get(bench.ref.sha256, [0]))

    assert indices(bench.sent) == [("greedy", index) for index in [0, 1, 2, 3] * 16 * MOST_TIMES] + [("honest", 0)]
    bench.now_s = MINUTE_S
    bench.serving.request("greedy", Get(bench.ref.sha256, [3]))
    assert indices(bench.sent)[-1] == ("greedy", 3)


def test_requests_for_what_is_not_here_are_answered_so_often(bench: SimpleNamespace) -> None:
    for number in range(2 * MOST_LOST):
        bench.serving.request("greedy", Get(f"{number:064x}", [0]))

    assert len(bench.sent) == MOST_LOST
