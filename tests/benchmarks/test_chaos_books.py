"""The books of `bench chaos` say what is in a state that was kept, so they show an update that was counted twice."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedwright.benchmarks.processes.chaos_server import BOOKS, with_books
from fedwright.benchmarks.suites.chaos import reckon
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Part, Stats, Update
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, MethodState
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.pooled_tasks import checked_update
from fedwright.server_runtime.rounds.store.base import Planned, Position
from helpers.fleet import Server, agents, report, setting
from helpers.present import present
from helpers.resume import Killed
from helpers.tiny_artifact import start_weights

STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
CHANGE = {name: np.ones_like(value) for name, value in start_weights().items()}


def make() -> Method:
    """FedAvg that keeps books."""
    return with_books(METHODS["fedavg"]).make(FedAvgParams(), setting())


def absorb(method: Method, *tasks: str) -> None:
    assignment = method.assign({"a": report()}, 1)["a"]
    method.absorb("a", CheckedUpdate(CHANGE, STATS, assignment, tasks=tasks))


def resumed(state: MethodState) -> Method:
    method = make()
    method.restore(state)
    return method


def books_of(method: Method) -> list[str]:
    return method.state().record(BOOKS, list[str])


def test_what_a_killed_server_folded_in_and_did_not_keep_does_not_count() -> None:
    before = make().state()
    absorb(resumed(before), "t1")
    method = resumed(before)
    absorb(method, "t1")

    assert reckon(["t1"], books_of(method)) == (0, 0)


def test_an_update_that_is_folded_into_a_kept_state_again_is_seen() -> None:
    method = make()
    absorb(method, "t1")
    method.advance()
    method = resumed(method.state())
    absorb(method, "t1")

    assert reckon(["t1", "t2"], books_of(method)) == (1, 1)


def test_an_update_that_came_alone_and_in_a_pool_is_seen() -> None:
    method = make()
    assignment = method.assign({"a": report()}, 1)["a"]
    pooled = Update("t1", 1, STATS, parts=[Part("t1", STATS), Part("t2", STATS)])
    planned = Planned("a", cast(Any, SimpleNamespace(pool=None, sum=None)), assignment)
    method.absorb("a", checked_update(planned, pooled, CHANGE))
    method.absorb("b", checked_update(planned, Update("t2", 1, STATS), CHANGE))

    assert books_of(method) == ["t1", "t2", "t2"]
    assert reckon(["t1", "t2"], books_of(method)) == (0, 1)


@pytest.mark.parametrize("moment", [2, 4, 5, 7])
def test_a_server_that_dies_and_resumes_folds_every_update_in_once(tmp_path: Path, moment: int) -> None:
    broker = MemoryBroker()
    server = Server(broker, tmp_path, devices=2, rounds=2)
    countdown = [moment]

    def die(event: events.Event) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            raise Killed

    with agents(broker, tmp_path, "a", "b"):
        with pytest.raises(Killed):
            server.run(observer=die, method=make())
        server.run(method=make())

    planned = [planned.task.task for number in (1, 2) for planned in present(server.store.plan(Position(number, 0)))]
    state = MethodState.read(BlobStore(tmp_path / "server-blobs").path(server.store.closed()[-1].state))
    assert reckon(planned, state.record(BOOKS, list[str])) == (0, 0)
    assert len(planned) == 4
