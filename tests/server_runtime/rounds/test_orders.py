"""Orders for a run while it goes on: durable, taken once, in force after a kill."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.self_measure import SelfMeasurement
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Challenge
from fedwright.protocol.predictor import Profile
from fedwright.server_runtime.rounds import events, orders
from fedwright.server_runtime.rounds.audit import audited, read_audit
from fedwright.server_runtime.rounds.orders import InForce, OrderBook, give_order, make_order, read_in_force
from fedwright.server_runtime.rounds.store.base import Position
from helpers.fleet import WAIT_S, Running, Scripted, Server, agents
from helpers.resume import Killed

PROFILE = Profile("board", "runtime", 1, link={"bytes_per_s": 1e6})


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    monkeypatch.setattr(orders, "LOOK_S", 0.0)
    return MemoryBroker()


def give(folder: Path, kind: str, number: int = 1, **more: Any) -> bool:
    return give_order(folder, make_order({"id": f"order-{number:04}", "kind": kind, **more}))


def once(kind: type, action: Callable[[Any], object], *, at: int = 1) -> Callable[[events.Event], None]:
    """An observer that acts at one event of a kind."""
    left = [at]

    def observe(event: events.Event) -> None:
        if isinstance(event, kind):
            left[0] -= 1
            if left[0] == 0:
                action(event)

    return observe


def closed(server: Server) -> list[int]:
    return [event.round for event in server.seen(events.RoundClosed)]


def test_more_rounds_are_done_and_measured(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    with agents(broker, tmp_path, "a", "b"):
        server.run(observer=once(events.UpdateTaken, lambda _: give(tmp_path, "rounds", rounds=3)))

    assert closed(server) == [1, 2, 3]
    assert [event.round for event in server.seen(events.StagePlanned) if event.evaluation] == [3]


def test_rounds_that_come_while_the_run_is_measured_are_done_too(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    with agents(broker, tmp_path, "a", "b"):
        server.run(observer=once(events.StagePlanned, lambda _: give(tmp_path, "rounds", rounds=2), at=2))

    assert closed(server) == [1, 2]
    assert [event.round for event in server.seen(events.StagePlanned) if event.evaluation] == [1, 2]


def test_a_run_ends_after_the_round_that_is_under_way(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=9)
    with agents(broker, tmp_path, "a", "b"):
        server.run(observer=once(events.UpdateTaken, lambda _: give(tmp_path, "end"), at=3))

    assert closed(server) == [1, 2]
    assert server.seen(events.StagePlanned)[-1].evaluation


def test_a_paused_run_begins_nothing_until_it_is_resumed(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=2)
    paused = threading.Event()

    def watch(event: events.Event) -> None:
        pause(event)
        if isinstance(event, events.Ordered):
            paused.set()

    pause = once(events.UpdateTaken, lambda _: give(tmp_path, "pause"))
    with agents(broker, tmp_path, "a", "b"):
        thread = threading.Thread(target=lambda: server.run(observer=watch), daemon=True)
        thread.start()
        assert paused.wait(WAIT_S)
        # Longer than a tick, in which an unpaused run would have begun its second round.
        thread.join(2.0)
        still = closed(server)
        give(tmp_path, "resume", 2)
        thread.join(WAIT_S)

    assert still == [1]
    assert closed(server) == [1, 2]


def test_a_pause_outlives_the_server(broker: MemoryBroker, tmp_path: Path) -> None:
    def die(event: events.Event) -> None:
        raise Killed

    server = Server(broker, tmp_path, devices=2, rounds=2)
    give(tmp_path, "pause")
    with agents(broker, tmp_path, "a", "b"):
        with pytest.raises(Killed):
            server.run(observer=once(events.Ordered, die))
        # It was told and not yet in force: the next server takes it again, and says so once.
        assert not read_in_force(tmp_path).paused
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        thread.join(2.0)
        before = closed(server)
        give(tmp_path, "resume", 2)
        thread.join(WAIT_S)

    assert before == []
    assert closed(server) == [1, 2]
    assert not read_in_force(tmp_path).paused


def test_a_device_that_is_taken_out_gets_nothing_until_it_is_let_in(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=3)
    out = once(events.RoundClosed, lambda _: give(tmp_path, "take-out", device="b"))
    back = once(events.RoundClosed, lambda _: give(tmp_path, "let-in", 2, device="b"), at=2)

    with agents(broker, tmp_path, "a", "b"):
        server.run(observer=lambda event: (out(event), back(event)))

    planned = {event.round: event.devices for event in server.seen(events.StagePlanned) if not event.evaluation}
    assert planned == {1: ("a", "b"), 2: ("a",), 3: ("a", "b")}


def test_the_task_of_a_device_that_is_taken_out_is_called_in(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1, deadline_s=WAIT_S)
    slow = Scripted(broker, "slow")

    def take_out(event: events.StagePlanned) -> None:
        give(tmp_path, "take-out", device="slow")

    with agents(broker, tmp_path, "a"):
        thread = threading.Thread(target=lambda: server.run(observer=once(events.StagePlanned, take_out)), daemon=True)
        thread.start()
        slow.join()
        thread.join(WAIT_S)

    outcomes = {reply.outcome for reply in server.store.replies(Position(1, 0)).values()}
    assert outcomes == {"update", "late"}
    assert [event.detail for event in server.seen(events.TaskFailed)] == ["it was taken out of the run by order"]


def test_fewer_devices_train_when_the_ratio_falls(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=2)
    with agents(broker, tmp_path, "a", "b"):
        ratio = once(events.UpdateTaken, lambda _: give(tmp_path, "sample-ratio", sample_ratio=0.5))
        server.run(observer=ratio)

    assert [len(event.devices) for event in server.seen(events.StagePlanned)][:2] == [2, 1]


def test_a_device_is_asked_to_measure_itself(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1, deadline_s=1.0, quorum_ratio=0.5)
    device = Scripted(broker, "b")
    give(tmp_path, "profile", device="b")
    with agents(broker, tmp_path, "a"):
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        device.join()
        while not (asked := device.hear(Challenge)).profile:
            pass
        thread.join(WAIT_S)

    assert asked.profile


def test_what_a_device_measured_is_known_and_told(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    measurement = SelfMeasurement([sys.executable, "-c", ""], PROFILE.to_json)

    def go_on(event: events.Event) -> None:
        if isinstance(event, events.DeviceMeasured):
            give(tmp_path, "resume", 3)

    give(tmp_path, "pause", 1)
    give(tmp_path, "profile", 2, device="a")
    device = Running(broker, "a", tmp_path, measurement=measurement)
    server.run(observer=go_on)
    device.stop()

    assert [event.report.profile for event in server.seen(events.DeviceMeasured)] == [PROFILE.to_json()]
    assert closed(server) == [1]


def test_given_twice_it_counts_once(tmp_path: Path) -> None:
    assert give(tmp_path, "pause")
    assert not give(tmp_path, "pause")
    book = OrderBook(tmp_path)
    told: list[events.Event] = []
    book.take(told.append, lambda order, force: None, lambda: 0)

    assert not give(tmp_path, "pause")
    assert [event.kind for event in told if isinstance(event, events.Ordered)] == ["pause"]
    assert OrderBook(tmp_path).force.paused
    assert not list((tmp_path / "orders").iterdir())


def test_an_order_that_was_told_before_a_kill_is_told_once(tmp_path: Path) -> None:
    give(tmp_path, "pause")
    with audited(tmp_path, events.ignore) as observe:
        for _ in range(2):
            # What the first one put down is lost, as by a kill before it was synced.
            OrderBook(tmp_path).take(observe, lambda order, force: None, lambda: 0)
            (tmp_path / "orders.json").unlink()
            give(tmp_path, "pause")

    assert [line["order"] for line in read_audit(tmp_path) if line["what"] == "ordered"] == ["order-0001"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"kind": "explode"}, "this is no order"),
        ({"kind": "pause", "device": "a"}, "pause is not for a device"),
        ({"kind": "take-out"}, "take-out needs a device"),
        ({"kind": "rounds"}, "rounds needs a number of rounds"),
        ({"kind": "sample-ratio", "sample_ratio": 1.5}, "this is no order"),
        ({"kind": "pause", "id": "../../x"}, "this is no order"),
        ({"kind": "pause", "more": 1}, "this is no order"),
    ],
    ids=["kind", "device too much", "no device", "no rounds", "ratio", "id", "unknown field"],
)
def test_what_is_no_order_is_refused_in_a_sentence(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_order({"id": "order-0001", **data})


def test_what_somebody_else_lays_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "junk-file.json").write_text("{")
    (tmp_path / "orders" / "other-name.json").write_text(json.dumps({"id": "order-0001", "kind": "pause"}))

    OrderBook(tmp_path).take(events.ignore, lambda order, force: None, lambda: 0)

    assert not read_in_force(tmp_path).paused


def test_rounds_that_were_begun_cannot_be_taken_back() -> None:
    fewer = make_order({"id": "order-0001", "kind": "rounds", "rounds": 2})

    assert InForce().after(fewer, begun=5).rounds == 5
