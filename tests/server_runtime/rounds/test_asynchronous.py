"""Asynchronous rounds: nobody waits for the slowest, stale updates count less, restarts lose and repeat nothing."""

import threading
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import NoQuorum
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Stats, Task, Update
from fedwright.server_runtime.methods.base import CheckedUpdate, Relay
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from helpers.fleet import WAIT_S, Scripted, Server, agents, setting
from helpers.resume import Killed, die_at_event
from helpers.tiny_artifact import start_weights

STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def change(value: float) -> bytes:
    return tensors.save({name: np.full_like(w, value) for name, w in start_weights().items()})


def test_the_model_advances_although_one_device_never_answers(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=3, rounds=4, buffer=2, deadline_s=2.0)
    silent = Scripted(broker, "silent")
    threading.Thread(target=silent.join, daemon=True).start()
    with agents(broker, tmp_path, "a", "b"):
        server.run()

    assert [e.round for e in server.seen(events.RoundClosed)] == [1, 2, 3, 4]
    assert all(e.metrics["updates"] == 2 for e in server.seen(events.RoundClosed))


def test_an_update_from_an_older_model_counts_less(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=2, buffer=1, deadline_s=1.0)
    fast, slow = Scripted(broker, "fast"), Scripted(broker, "slow")
    method = FedAvg(FedAvgParams(), setting())
    weights: list[float] = []
    absorb = method.absorb

    def weighed(device: str, update: CheckedUpdate) -> Relay | None:
        weights.append(update.weight)
        return absorb(device, update)

    monkeypatch.setattr(method, "absorb", weighed)

    def play(device: Scripted, value: float, before: Event) -> None:
        task = device.hear(Task)
        device.say(Ack(task.task))
        assert before.wait(WAIT_S)
        device.say(Update(task.task, task.round, STATS, make_ref(change(value))))

    first_version, at_once = threading.Event(), threading.Event()
    at_once.set()

    def run_device(device: Scripted, value: float, before: Event) -> None:
        device.join()
        play(device, value, before)

    for arguments in ((fast, 1.0, at_once), (slow, 2.0, first_version)):
        threading.Thread(target=run_device, args=arguments, daemon=True).start()
    server.run(method=method, observer=lambda e: first_version.set() if isinstance(e, events.RoundClosed) else None)

    # The second was made from version 1 while version 2 was current: 1 / sqrt(1 + 1).
    assert weights == [1.0, pytest.approx(2**-0.5)]


@pytest.mark.parametrize("moment", [2, 4, 6, 8])
def test_a_server_that_dies_absorbs_every_update_exactly_once(
    broker: MemoryBroker, tmp_path: Path, moment: int
) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=4, buffer=2)
    with agents(broker, tmp_path, "a", "b"):
        with pytest.raises(Killed):
            server.run(observer=die_at_event(moment))
        server.run()

    closed = server.store.closed()
    absorbed = [task for stage in closed for task in stage.absorbed]
    assert [stage.position.round for stage in closed] == [1, 2, 3, 4]
    assert len(absorbed) == len(set(absorbed)) == 8


def test_silence_of_all_devices_stops_the_run_with_a_sentence(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1, buffer=1, deadline_s=0.3)
    silent = Scripted(broker, "silent")
    threading.Thread(target=silent.join, daemon=True).start()
    with pytest.raises(NoQuorum, match="no update came for 0 s while version 1 was made"):
        server.run()
