"""The host's side of edges: what it believes, what it counts once, and what it sends back."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fedwright.protocol import codec, deltas
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import (
    Ack,
    Carried,
    Challenge,
    Dismiss,
    Gone,
    Here,
    Part,
    Recall,
    Refusal,
    Report,
    Stats,
    Task,
    Update,
)
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.orders import give_order, make_order
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard
from fedwright.server_runtime.transport.edge_routes import EdgeRights
from helpers.fleet import FLEET, WAIT_S, Scripted, Server, report
from helpers.present import present
from helpers.tiny_artifact import start_weights

STATS = Stats(samples=24, steps=6, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


class ScriptedEdge(Scripted):
    """An edge that says what the test wants."""

    def __init__(self, broker: MemoryBroker, name: str, *devices: str) -> None:
        super().__init__(broker, name)
        self.devices = {device: codec.new_id() for device in devices}

    def join(self) -> None:
        """Report when the host asks who is there."""
        self.hear(Challenge)
        self.enter()

    def enter(self) -> None:
        """Report, and carry the reports of all devices."""
        self.say(report(edge=True, trains=False))
        for device in self.devices:
            self.carry(device, report())

    def carry(self, device: str, body: Any, *, sender: str | None = None) -> None:
        """Pass on what a device would say."""
        self.say(Carried(device, codec.encode(body, sender=sender or device, boot=self.devices.get(device, "b"))))

    def hear_for(self, kind: type[Any]) -> tuple[str, Any]:
        """Wait for the next message of a kind to a device; returns the device too."""
        while True:
            carried = self.hear(Carried)
            body = codec.decode(carried.payload).body
            if isinstance(body, kind):
                return carried.device, body

    def tasks(self) -> dict[str, Task]:
        """The tasks of all its devices."""
        found: dict[str, Any] = {}
        while len(found) < len(self.devices):
            device, task = self.hear_for(Task)
            self.say(Ack(task.task))
            found[device] = task
        return found

    def update(self, *tasks: Task, value: float = 0.5) -> Update:
        """A change of every weight by `value`, for one task or for several."""
        change = {name: np.full_like(weight, value) for name, weight in start_weights().items()}
        parts = [Part(task.task, STATS) for task in tasks] if len(tasks) > 1 else []
        return Update(tasks[0].task, tasks[0].round, STATS, make_ref(deltas.encode(change)), parts)


class Serving(Server):
    """A host that keeps the method of its run."""

    method: Method


@contextmanager
def serving(broker: MemoryBroker, folder: Path, *, devices: int = 2) -> Iterator[Serving]:
    """A host in a thread, one round long; leaving the block waits for its end."""
    server = Serving(broker, folder, devices=devices, rounds=1, deadline_s=WAIT_S)

    def work() -> None:
        server.method = server.run()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield server
    thread.join(WAIT_S)
    assert not thread.is_alive()


def finish(edge: ScriptedEdge) -> None:
    """Decline the evaluation that ends a run."""
    for device, task in edge.tasks().items():
        edge.carry(device, Refusal(task.task, "failed", "no"))


def weights_of(server: Serving) -> dict[str, NDArray[Any]]:
    return server.method.state().tensors


def test_a_pooled_update_counts_for_all_its_tasks(tmp_path: Path) -> None:
    broker = MemoryBroker()
    edge = ScriptedEdge(broker, "edge", "a", "b")
    with serving(broker, tmp_path) as server:
        edge.join()
        edge.hear(Here)
        tasks = edge.tasks()
        assert {present(task.pool).size for task in tasks.values()} == {2}
        assert len({present(task.pool).key for task in tasks.values()}) == 1
        edge.say(edge.update(*tasks.values()))
        assert sorted(edge.hear_for(Ack)[0] for _ in tasks) == ["a", "b"]
        finish(edge)

    assert len(server.seen(events.UpdateTaken)) == 2
    for name, value in start_weights().items():
        np.testing.assert_allclose(weights_of(server)[name], value + 0.5, rtol=1e-6)


def test_a_pooled_update_over_the_limit_is_turned_down_for_all_its_tasks(tmp_path: Path) -> None:
    broker = MemoryBroker()
    greedy, other = ScriptedEdge(broker, "greedy", "a", "b"), ScriptedEdge(broker, "other", "c", "d")
    with serving(broker, tmp_path, devices=4) as server:
        greedy.join()
        other.join()
        update = greedy.update(*greedy.tasks().values())
        greedy.say(structs.replace(update, tensors=make_ref(bytes(2_000_000), inline=False)))
        told = dict(greedy.hear_for(Ack) for _ in update.parts)
        other.say(other.update(*other.tasks().values()))
        finish(greedy)
        finish(other)

    assert told.keys() == {"a", "b"}
    assert all("bytes is over the limit of 1000128" in ack.problem for ack in told.values())
    assert {event.device for event in server.seen(events.UpdateTaken)} == {"c", "d"}


def test_a_task_that_was_answered_before_is_not_counted_again(tmp_path: Path) -> None:
    broker = MemoryBroker()
    edge = ScriptedEdge(broker, "edge", "a", "b")
    with serving(broker, tmp_path) as server:
        edge.join()
        tasks = edge.tasks()
        edge.carry("a", edge.update(tasks["a"], value=1.0))
        assert edge.hear_for(Ack)[0] == "a"
        edge.say(edge.update(tasks["a"], tasks["b"], value=9.0))
        assert edge.hear(Recall).of == tasks["a"].task
        edge.carry("b", edge.update(tasks["b"], value=0.0))
        assert edge.hear_for(Ack)[0] == "b"
        finish(edge)

    for name, value in start_weights().items():
        np.testing.assert_allclose(weights_of(server)[name], value + 0.5, rtol=1e-6)


def test_updates_that_do_not_belong_together_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    one, other = ScriptedEdge(broker, "one", "a", "b"), ScriptedEdge(broker, "other", "c")
    with serving(broker, tmp_path, devices=3) as server:
        one.join()
        other.join()
        mine, foreign = one.tasks(), other.tasks()
        one.say(one.update(mine["a"], foreign["c"], value=9.0))
        one.say(one.update(mine["a"], mine["a"], value=9.0))
        one.say(one.update(mine["a"], mine["b"]))
        other.carry("c", other.update(foreign["c"]))
        assert [edge.hear_for(Ack)[1].problem for edge in (one, one, other)] == ["", "", ""]
        finish(one)
        finish(other)

    assert len(server.seen(events.UpdateTaken)) == 3
    assert caplog.text.count("put updates together that are not one pool of its own") == 2
    for name, value in start_weights().items():
        np.testing.assert_allclose(weights_of(server)[name], value + 0.5, rtol=1e-6)


def test_a_device_that_moves_is_recalled_from_the_edge_it_left(tmp_path: Path) -> None:
    broker = MemoryBroker()
    one = ScriptedEdge(broker, "one", "a", "b")
    with serving(broker, tmp_path) as server:
        one.join()
        tasks = one.tasks()
        other = ScriptedEdge(broker, "other")
        other.devices["b"] = one.devices["b"]
        other.enter()
        assert one.hear(Recall).of == tasks["b"].task
        [moved] = other.tasks().values()
        assert (moved.task, moved.pool) == (tasks["b"].task, None)
        # News that the edge it left repeats do not bring it back.
        other.carry("b", other.update(moved))
        one.carry("a", one.update(tasks["a"]))
        assert other.hear_for(Ack)[0] == "b"
        one.devices.pop("b")
        finish(one)
        finish(other)

    assert len(server.seen(events.UpdateTaken)) == 2


def test_a_device_that_is_taken_out_is_recalled_from_its_edge(tmp_path: Path) -> None:
    broker = MemoryBroker()
    edge = ScriptedEdge(broker, "edge", "a", "b")
    with serving(broker, tmp_path) as server:
        edge.join()
        tasks = edge.tasks()
        give_order(tmp_path, make_order({"id": "order-0001", "kind": "take-out", "device": "b"}))
        assert edge.hear(Recall).of == tasks["b"].task
        edge.carry("a", edge.update(tasks["a"]))
        edge.devices.pop("b")
        finish(edge)

    assert [event.device for event in server.seen(events.UpdateTaken)] == ["a"]


def test_two_boards_of_one_id_behind_two_edges(tmp_path: Path) -> None:
    broker = MemoryBroker()
    one = ScriptedEdge(broker, "one", "a")
    with serving(broker, tmp_path, devices=1) as server:
        one.join()
        [task] = one.tasks().values()
        other = ScriptedEdge(broker, "other", "a")
        other.enter()
        assert one.hear_for(Challenge)[0] == "a"
        one.carry("a", report())
        device, dismissal = other.hear_for(Dismiss)
        assert (device, dismissal.boot, dismissal.why) == ("a", other.devices["a"], "identity_taken")
        one.carry("a", one.update(task))
        assert one.hear_for(Ack)[0] == "a"
        finish(one)

    assert len(server.seen(events.UpdateTaken)) == 1


def test_a_board_that_died_may_come_back_behind_another_edge(tmp_path: Path) -> None:
    broker = MemoryBroker()
    one = ScriptedEdge(broker, "one", "a")
    with serving(broker, tmp_path, devices=1):
        one.join()
        [task] = one.tasks().values()
        one.carry("a", Gone())
        other = ScriptedEdge(broker, "other", "a")
        other.enter()
        [again] = other.tasks().values()
        assert (again.task, again.boot) == (task.task, other.devices["a"])
        assert one.hear(Recall).of == task.task
        other.carry("a", other.update(again))
        finish(other)


def test_devices_behind_a_lost_edge_are_lost_until_they_come_back(tmp_path: Path) -> None:
    broker = MemoryBroker()
    one = ScriptedEdge(broker, "one", "a", "b")
    with serving(broker, tmp_path) as server:
        one.join()
        tasks = one.tasks()
        one.link.drop()
        again = ScriptedEdge(broker, "one")
        again.devices = one.devices
        again.enter()
        assert {device: task.task for device, task in again.tasks().items()} == {
            device: task.task for device, task in tasks.items()
        }
        again.say(again.update(*tasks.values()))
        finish(again)

    assert {event.device for event in server.seen(events.DeviceLost)} >= {"a", "b"}


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[tuple[MemoryBroker, DeviceChannel]]:
    """A host that lets edge `one` speak for device `a` only; what it says is logged."""
    broker = MemoryBroker()
    link = broker.link("server")
    allowed = {("one", "a")}
    rights = EdgeRights(lambda name: name == "one", lambda *pair: pair in allowed)
    yield broker, DeviceChannel(link, FLEET, blobs=BlobStore(tmp_path), edge_rights=rights)
    link.close()


def test_an_edge_speaks_for_its_own_devices_only(
    exchange: tuple[MemoryBroker, DeviceChannel], caplog: pytest.LogCaptureFixture
) -> None:
    broker, host = exchange
    ScriptedEdge(broker, "one", "a", "b").enter()

    heard = [event.device for event in host.poll(0.1) if isinstance(event, Heard)]

    assert heard == ["one", "a"]
    assert "it speaks for b, which is not enrolled for it; enroll the device with --edge one" in caplog.text


def test_a_device_does_not_make_itself_an_edge(
    exchange: tuple[MemoryBroker, DeviceChannel], caplog: pytest.LogCaptureFixture
) -> None:
    broker, host = exchange
    ScriptedEdge(broker, "a", "b").enter()

    assert host.poll(0.1) == []
    assert "it reports as an edge and was not enrolled as one" in caplog.text


@pytest.mark.parametrize(
    ("body", "sender", "says"),
    [
        (report(), "c", "message carried for a claims to be from c"),
        (Challenge(), None, "an edge does not carry a challenge"),
    ],
    ids=["another's name", "an order"],
)
def test_what_an_edge_may_not_carry(
    exchange: tuple[MemoryBroker, DeviceChannel],
    caplog: pytest.LogCaptureFixture,
    body: Challenge | Report,
    sender: str | None,
    says: str,
) -> None:
    broker, host = exchange
    edge = ScriptedEdge(broker, "one")
    edge.enter()
    edge.carry("a", body, sender=sender)

    assert [event.device for event in host.poll(0.1)] == ["one"]
    assert says in caplog.text


def test_old_news_from_another_edge_is_not_believed(tmp_path: Path) -> None:
    broker = MemoryBroker()
    host = DeviceChannel(broker.link("server"), FLEET, blobs=BlobStore(tmp_path))
    one = ScriptedEdge(broker, "one")
    old = codec.encode(report(), sender="a", boot="b")
    ScriptedEdge(broker, "other", "a").enter()
    one.say(Carried("a", old))
    one.say(Carried("a", codec.encode(Gone(), sender="a", boot="b")))
    host.poll(0.1)

    assert host.edge_of("a") == "other"


def test_a_dismissal_reaches_the_edge_after_its_devices(tmp_path: Path) -> None:
    broker = MemoryBroker()
    edge = ScriptedEdge(broker, "edge", "a", "b")
    with serving(broker, tmp_path):
        edge.join()
        edge.say(edge.update(*edge.tasks().values()))
        finish(edge)
        assert sorted(edge.hear_for(Dismiss)[0] for _ in range(2)) == ["a", "b"]
        assert edge.hear(Dismiss).why == "run_over"
