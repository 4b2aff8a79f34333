"""Links that repeat, delay, reorder, lose and damage messages: the run ends with the bytes of an undisturbed one."""

import errno
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.store import journal as journals
from fedwright.protocol import blobs as blob_files
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.support.files import replace_file, sync_to_disk
from fedwright.server_runtime.rounds import events
from helpers.faults import FaultyLink
from helpers.fleet import Running, Server, agents


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    broker = MemoryBroker()
    with agents(broker, folder, "a", "b", "c"):
        return Server(broker, folder, devices=3, rounds=3).run().state().to_bytes()


class FaultyBroker(MemoryBroker):
    """A broker whose every link misbehaves."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.faulty: list[FaultyLink] = []

    def link(self, client_id: str, *, will: Any = None) -> Any:
        link = FaultyLink(super().link(client_id, will=will), seed=f"{self.seed} {client_id}", rate=0.6)
        self.faulty.append(link)
        return link


def test_misbehaving_links_change_nothing(tmp_path: Path, undisturbed: bytes) -> None:
    happened: Counter[str] = Counter()
    for seed in range(4):
        # Small chunks, so that the artifact travels in many pieces that can be lost and damaged.
        broker = FaultyBroker(seed)
        server = Server(broker, tmp_path / str(seed), devices=3, rounds=3, chunk_bytes=1024)
        with agents(broker, tmp_path / str(seed), "a", "b", "c"):
            state = server.run().state().to_bytes()
        assert state == undisturbed
        for link in broker.faulty:
            happened.update(link.faults)

    assert min(happened.values()) > 0, happened


def test_a_device_with_a_full_disk_refuses_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker()
    server = Server(broker, tmp_path, devices=2, rounds=2)
    full = threading.Event()
    folder = str(tmp_path / "full")

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(path: Path, *arguments: bytes) -> None:
            if full.is_set() and folder in str(path):
                raise OSError(errno.ENOSPC, "No space left on device")
            real(path, *arguments)

        return write

    monkeypatch.setattr(journals, "replace_file", failing(replace_file))
    monkeypatch.setattr(blob_files, "sync_to_disk", failing(sync_to_disk))
    full.set()
    running = Running(broker, "full", tmp_path)
    with agents(broker, tmp_path, "fine"):
        server.run(observer=lambda e: full.clear() if isinstance(e, events.RoundClosed) else None)
    running.stop()

    failed = [e for e in server.seen(events.TaskFailed) if e.round == 1]
    assert [e.device for e in failed] == ["full"]
    assert "free some space" in failed[0].detail
    assert {e.device for e in server.seen(events.UpdateTaken) if e.round == 2} == {"full", "fine"}
