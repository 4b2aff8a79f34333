"""What a device says it is at: only where its task asks, not too often, and with numbers that grow."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedwright.device_runtime.status import StatusTeller
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Chunk, Recipe, Returns, Status, Task, Update
from fedwright.server_runtime.rounds import events
from helpers.fleet import FLEET, WAIT_S, Running, Server, agents
from helpers.tiny_artifact import make_artifact, start_weights


def teller(status_s: float, answer: Any = None) -> tuple[StatusTeller, list[float]]:
    """What speaks for a device with one task in hand, and its clock."""
    now = [100.0]
    entry = SimpleNamespace(task=SimpleNamespace(task="t1", status_s=status_s), answer=answer)
    have = SimpleNamespace(
        journal=SimpleNamespace(entry=entry),
        runner=SimpleNamespace(progress=lambda: (120, 400), free_bytes=lambda: 5),
        board=SimpleNamespace(ram_bytes=9),
    )
    return StatusTeller(have, clock=lambda: now[0]), now  # type: ignore[arg-type]


def test_a_task_that_asks_for_nothing_is_told_nothing() -> None:
    silent, _ = teller(0.0)

    assert silent.due([], working=True) is None


def test_steps_are_told_no_oftener_than_asked_and_than_once_a_second() -> None:
    told, now = teller(0.1)
    first = told.due([], working=True)
    assert first is not None
    assert (first.state, first.done, first.of, first.free_bytes, first.limit_bytes) == ("training", 120, 400, 5, 9)

    now[0] += 0.9
    assert told.due([], working=True) is None
    now[0] += 0.2
    assert told.due([], working=True) is not None


def test_fetching_counts_the_bytes_that_are_here() -> None:
    told, _ = teller(1.0)
    download: Any = SimpleNamespace(ref=SimpleNamespace(size_bytes=1000, chunk_bytes=100), missing=4)

    found = told.due([download], working=False)

    assert found is not None
    assert (found.state, found.done, found.of) == ("fetching", 600, 1000)


def test_uploading_counts_what_was_sent_and_never_more_than_all() -> None:
    update = Update("t1", 1, None, tensors=SimpleNamespace(size_bytes=10))  # type: ignore[arg-type]
    told, now = teller(1.0, answer=update)
    told.due([], working=False)
    for _ in range(3):
        told.sent(Chunk("0" * 64, 0, memoryview(b"12345")))
    now[0] += 5

    found = told.due([], working=False)

    assert found is not None
    assert (found.state, found.done, found.of) == ("uploading", 10, 10)


@pytest.mark.parametrize("status_s", [0.0, 1.0], ids=["a server of before", "a server that asks"])
def test_an_agent_speaks_of_itself_only_to_a_server_that_asks(tmp_path: Path, status_s: float) -> None:
    broker = MemoryBroker()
    server = broker.link("server")
    server.subscribe(topics.up_all(FLEET))
    device = Running(broker, "a", tmp_path)
    refs = make_ref(artifacts.pack(make_artifact())), make_ref(tensors.save(start_weights()))
    task = Task("t1", device.boot, "run", 1, *refs, Recipe(4, 0.1, 1), Returns(), 60.0, status_s=status_s)
    server.send(topics.down(FLEET, "a"), codec.encode(task, sender="server", boot="s"))

    heard: list[Any] = []
    # Nobody acknowledges the update, so that it comes again and the device stays with its task.
    while sum(isinstance(body, Update) for body in heard) < 2:
        received = server.receive(WAIT_S)
        assert received is not None
        heard.append(codec.decode(received.payload).body)
    device.stop()
    server.close()

    assert any(isinstance(body, Status) for body in heard) == bool(status_s)


def test_a_server_hears_of_tasks_that_are_out_and_of_no_others(tmp_path: Path) -> None:
    broker = MemoryBroker()
    server = Server(broker, tmp_path, devices=1, rounds=1)
    liar = broker.link("liar")

    def lie(event: events.Event) -> None:
        if isinstance(event, events.StagePlanned):
            foreign = codec.encode(Status("nobody", "training", 1, 2), sender="a", boot="b")
            liar.send(topics.up(FLEET, "a"), foreign)

    with agents(broker, tmp_path, "a"):
        server.run(observer=lie)

    assert {one.status.task for one in server.seen(events.DeviceStatus)} <= {
        task for planned in server.seen(events.StagePlanned) for _, task, _ in planned.sent
    }
    (first, *_) = server.seen(events.StagePlanned)
    assert first.offers["a"].width == 1.0
    assert first.offers["a"].bytes_down > 0
