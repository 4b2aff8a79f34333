"""Rounds that lack updates: they can be resumed, and what is passed on inside a round may get lost."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import NoQuorum, OverBudget
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Recipe, Refusal, Stats, Task, Update
from fedwright.server_runtime.methods.base import CheckedUpdate, Relay
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Position
from helpers.fleet import WAIT_S, Running, Scripted, Server, agents, setting
from helpers.present import present
from helpers.tiny_artifact import start_weights

STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
ZEROS = {name: np.zeros_like(value) for name, value in start_weights().items()}


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def play(device: Scripted, *steps: Callable[..., Any]) -> threading.Thread:
    """A device joins, then answers one task with each step; a step makes an answer of a task."""

    def work() -> None:
        device.join()
        for step in steps:
            task = device.hear(Task)
            device.say(Ack(task.task))
            device.say(step(task))
            device.hear(Ack)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def refuse(task: Task) -> Refusal:
    return Refusal(task.task, "failed", "the disk is full")


def send(task: Task) -> Update:
    return Update(task.task, task.round, STATS, make_ref(tensors.save(ZEROS)))


def send_nonsense(task: Task) -> Update:
    return Update(task.task, task.round, STATS, make_ref(b"nonsense"))


def measure(task: Task) -> Update:
    return Update(task.task, task.round, STATS)


def ids(server: Server) -> list[str]:
    return [planned.task.task for planned in present(server.store.plan(Position(1, 0)))]


@pytest.mark.parametrize("fail", [refuse, send_nonsense], ids=["refused", "rejected"])
def test_a_round_that_failed_for_its_devices_goes_on_when_they_are_mended(
    broker: MemoryBroker, tmp_path: Path, fail: Callable[..., Any]
) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    broken = Scripted(broker, "a")
    play(broken, fail)
    with pytest.raises(NoQuorum, match="mend the devices, then resume the run"):
        server.run()
    broken.link.close()

    with agents(broker, tmp_path, "a"):
        server.run()

    assert [event.device for event in server.seen(events.UpdateTaken) if event.round == 1 and not event.evaluation] == [
        "a"
    ]
    assert [
        event.devices for event in server.seen(events.StagePlanned) if event.round == 1 and not event.evaluation
    ] == [("a",), ("a",)]
    assert len(set(ids(server))) == 2


def test_a_device_is_asked_again_each_time_that_the_run_is_resumed(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    for _ in range(2):
        broken = Scripted(broker, "a")
        play(broken, refuse)
        with pytest.raises(NoQuorum, match="the disk is full"):
            server.run()
        broken.link.close()

    with agents(broker, tmp_path, "a"):
        server.run()

    assert len(set(ids(server))) == 3


def test_a_device_that_was_offered_less_begins_anew_with_its_first_task(broker: MemoryBroker, tmp_path: Path) -> None:
    def too_large(artifact: Artifact, recipe: Recipe) -> None:
        raise OverBudget(212_000_000, 180_000_000)

    server = Server(broker, tmp_path, devices=1, rounds=1)
    small = Running(broker, "a", tmp_path, check=too_large)
    with pytest.raises(NoQuorum):
        server.run()
    small.stop()
    with agents(broker, tmp_path, "a"):
        server.run()

    batches = [planned.task.recipe.batch for planned in present(server.store.plan(Position(1, 0)))]
    assert batches == [8, 4, 2, 1, 8]


def test_a_round_with_its_quorum_leaves_a_device_that_refused_alone(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    play(Scripted(broker, "picky"), refuse, measure)
    with agents(broker, tmp_path, "a"):
        server.run()

    assert len(ids(server)) == 2


def test_a_device_that_missed_the_word_on_its_update_hears_again_that_it_was_used(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    device = Scripted(broker, "a")
    told: list[str] = []

    def work() -> None:
        device.join()
        update = send(device.hear(Task))
        for _ in range(2):
            device.say(update)
            told.append(device.hear(Ack).problem)
        device.say(measure(device.hear(Task)))

    player = threading.Thread(target=work, daemon=True)
    player.start()
    server.run()
    player.join(WAIT_S)

    assert told == ["", ""]


class Passing(FedAvg):
    """What device a learnt goes on to device b."""

    def absorb(self, device: str, reply: CheckedUpdate) -> Relay | None:
        """See Method."""
        super().absorb(device, reply)
        first = device == "a" and not reply.assignment.marks
        return Relay("b", replace(reply.assignment, marks=(1,))) if first else None


def test_a_partner_that_is_lost_does_not_end_the_round(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    a, b = (play(Scripted(broker, "a"), send, measure), play(Scripted(broker, "b"), send, refuse, measure))

    server.run(method=Passing(FedAvgParams(), setting()))
    a.join(WAIT_S)
    b.join(WAIT_S)

    assert [(e.device, e.detail) for e in server.seen(events.TaskFailed)] == [("b", "b refused: the disk is full")]
    assert [closed.position for closed in server.store.closed()] == [Position(1, 0), Position(1, 1)]
    assert len(server.seen(events.RoundClosed)) == 1
