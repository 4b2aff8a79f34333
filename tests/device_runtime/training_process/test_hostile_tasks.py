"""An agent survives any task: it answers, stops at once, refuses what ended its process twice, and goes on."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.training_process.parent import TrainingProcess
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Challenge, Recipe, Refusal, Report, Returns, Task, Update
from helpers.fleet import FLEET, WAIT_S, Running
from helpers.hostile_graphs import dividing, endless
from helpers.task_bench import Bench, wait_for_work
from helpers.tiny_artifact import make_artifact, start_weights


class Device:
    """An agent with a training process, and a server that says what the test wants."""

    def __init__(self, folder: Any) -> None:
        self.broker = MemoryBroker()
        self.bench = Bench(folder)
        self.folder = folder
        self.link = self.broker.link("server")
        self.link.subscribe(topics.up_all(FLEET))
        self.begin_life()

    def begin_life(self) -> None:
        self.process = TrainingProcess(self.bench.settings("a"))
        self.running = Running(self.broker, "a", self.folder, runner=self.process)

    def say(self, body: Any) -> None:
        self.link.send(topics.down(FLEET, "a"), codec.encode(body, sender="server", boot="s"))

    def give(self, name: Any, artifact: Any) -> None:
        recipe = Recipe(batch=4, learning_rate=0.1, seed=1)
        refs = make_ref(artifacts.pack(artifact)), make_ref(tensors.save(start_weights()))
        self.say(Task(name, self.running.boot, "run", 1, *refs, recipe, Returns(), 60.0))

    def hear(self, *kinds: Any) -> Any:
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            received = self.link.receive(1.0)
            body = None if received is None else codec.decode(received.payload).body
            if isinstance(body, kinds):
                return body
        raise AssertionError(f"no {kinds} came")


@pytest.fixture
def device(tmp_path: Path) -> Any:
    made = Device(tmp_path)
    yield made
    made.running.stop()
    made.process.close()


def test_a_task_that_ends_its_process_is_refused_after_two_attempts_and_the_next_is_done(device: Any) -> None:
    device.give("bad", dividing())
    refusal = device.hear(Refusal, Update)

    assert isinstance(refusal, Refusal)
    assert (refusal.task, refusal.reason) == ("bad", "failed")
    assert "begun 2 times" in refusal.detail
    assert "SIGFPE" in refusal.detail
    device.say(Ack("bad"))
    device.give("good", make_artifact())
    assert device.hear(Refusal, Update).task == "good"


def test_a_process_that_is_killed_is_replaced_and_the_agent_answers_meanwhile(device: Any) -> None:
    device.hear(Report)
    device.give("bad", endless())
    device.hear(Ack)
    killed: set[Any] = set()
    until_s = time.monotonic() + WAIT_S
    while len(killed) < 2:
        assert time.monotonic() < until_s, "no process works"
        pid = device.process.pid
        if pid is not None and pid not in killed and device.running.journal.entry.attempts == len(killed) + 1:
            wait_for_work(pid)
            device.say(Challenge())
            device.hear(Report)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        os.sched_yield()

    assert "SIGKILL" in device.hear(Refusal).detail


def test_stopping_the_agent_takes_no_time_in_an_endless_graph_and_does_not_count(device: Any) -> None:
    device.give("bad", endless())
    device.hear(Ack)
    wait_for_work(device.process.pid)
    began_s = time.monotonic()
    device.running.stop()

    assert time.monotonic() - began_s < 1.5
    assert not device.running.thread.is_alive()
    assert device.running.journal.entry.attempts == 0


def test_a_newer_task_takes_the_place_of_an_endless_one(device: Any) -> None:
    device.give("bad", endless())
    device.hear(Ack)
    pid = device.process.pid
    wait_for_work(pid)
    device.give("good", make_artifact())

    assert device.hear(Update, Refusal).task == "good"
    assert device.process.pid == pid


def test_attempts_of_earlier_lives_count(device: Any) -> None:
    device.give("bad", endless())
    device.hear(Ack)
    wait_for_work(device.process.pid)
    device.running.stop()
    journal = Journal(device.folder / "a")
    # Two lives that ended without a word, as when the power fails.
    assert [journal.begin(0), journal.begin(0)] == [True, True]
    journal.close()
    device.begin_life()

    assert "begun 2 times" in device.hear(Refusal).detail


def test_threads_of_a_device_end_with_it(device: Any) -> None:
    device.give("good", make_artifact())
    device.hear(Update)
    device.running.stop()

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("train")]
