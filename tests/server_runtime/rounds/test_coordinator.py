"""The coordinator with real agents over the in-memory link: whole runs, misbehaving devices, restarts."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.train.base import StepResult
from fedwright.device_runtime.train.loop import train
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import codec, tensors
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import DeviceError, IdentityTaken, NoQuorum, OverBudget
from fedwright.protocol.link.memory import MemoryBroker, MemoryLink
from fedwright.protocol.messages import Ack, DataSummary, Dismiss, Get, Recipe, Refusal, Stats, Task, Update
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import evaluation_after
from helpers.fleet import WAIT_S, Running, Scripted, Server, agents, make_data, report, setting
from helpers.resume import Killed, die_at_event
from helpers.tiny_artifact import CLASSES, make_artifact, start_weights

STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)

OTHER_VERSION = codec.encode(Ack("x"), sender="odd", boot="b").replace(b"version\x01", b"version\x63")


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def answer(device: Scripted, values: dict[str, np.ndarray]) -> Ack:
    """Play one round: take a task, send these tensors back, return what the server says to that."""
    task = device.hear(Task)
    device.say(Ack(task.task))
    device.say(Update(task.task, task.round, STATS, make_ref(tensors.save(values))))
    answer: Ack = device.hear(Ack)
    return answer


def in_background(action: Callable[..., Any]) -> Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_a_run_ends_with_the_weighted_mean_of_what_the_devices_learnt(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    with agents(broker, tmp_path, "a", "b"):
        method = server.run()

    # The same by hand: train each device's share from the start, weigh by samples.
    assignments = FedAvg(FedAvgParams(), setting()).assign({"a": report(), "b": report()}, 1)
    expected = {name: np.zeros(value.shape) for name, value in start_weights().items()}
    for device, assignment in assignments.items():
        trainer = PortableTrainer(make_artifact())
        trainer.load(start_weights())
        train(trainer, make_data(device), assignment.recipe)
        for name, value in trainer.weights().items():
            expected[name] += 0.5 * value
    for name, value in method.state().tensors.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)


def test_every_round_and_the_closing_evaluation_are_seen(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=3)
    with agents(broker, tmp_path, "a", "b"):
        server.run()

    assert [event.round for event in server.seen(events.RoundClosed)] == [1, 2, 3]
    assert [event.evaluation for event in server.seen(events.StagePlanned)] == [False, False, False, True]
    assert len(server.store.replies(evaluation_after(3))) == 2


def test_a_device_that_never_answers_does_not_hold_up_the_others(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1, deadline_s=1.0)
    silent = Scripted(broker, "silent")
    with agents(broker, tmp_path, "a"):
        in_background(silent.join)
        server.run()

    [failed] = [e for e in server.seen(events.TaskFailed) if e.round == 1 and not e.evaluation]
    assert (failed.device, failed.detail) == ("silent", "no answer within 1 s")
    assert [e.device for e in server.seen(events.UpdateTaken) if e.round == 1 and not e.evaluation] == ["a"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"W": np.full((3, 4), np.nan, np.float32)}, "not finite", id="nan"),
        pytest.param({"W": np.zeros((4, 4), np.float32)}, "shape", id="shape"),
        pytest.param({"extra": np.zeros(1, np.float32)}, "extra is missing, unknown or double", id="extra tensor"),
        pytest.param({"W": np.zeros((3, 4), np.int64)}, "float32 was asked for", id="type"),
    ],
)
def test_an_update_with_bad_tensors_is_not_used_and_its_sender_told(
    broker: MemoryBroker, tmp_path: Path, change: dict[str, NDArray[Any]], problem: str
) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    bad = Scripted(broker, "bad")
    good = {name: np.zeros_like(value) for name, value in start_weights().items()}
    told: list[Ack] = []

    def play() -> None:
        bad.join()
        told.append(answer(bad, {**good, **change}))
        answer(bad, {})

    with agents(broker, tmp_path, "a"):
        player = in_background(play)
        server.run()
        player.join(WAIT_S)

    assert problem in told[0].problem
    assert [e.device for e in server.seen(events.UpdateTaken) if e.round == 1 and not e.evaluation] == ["a"]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xff\x00garbage", id="garbage"),
        pytest.param(b"", id="empty"),
        pytest.param(
            codec.encode(Ack("x"), sender="odd", boot="b").replace(b"version\x01", b"version\x63"), id="version"
        ),
        pytest.param(codec.encode(report(), sender="someone-else", boot="b"), id="false sender"),
    ],
)
def test_bytes_that_are_no_message_change_nothing(broker: MemoryBroker, tmp_path: Path, payload: bytes) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    odd = Scripted(broker, "odd")

    with agents(broker, tmp_path, "a"):
        server.run(observer=lambda event: odd.say_bytes(payload))

    assert {e.device for e in server.seen(events.DeviceJoined)} == {"a"}
    assert len(server.seen(events.RoundClosed)) == 1


def test_an_update_for_a_round_that_is_over_is_answered_and_not_counted(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=2)
    late = Scripted(broker, "late")

    def send_late(event: Any) -> None:
        if isinstance(event, events.RoundClosed) and event.round == 1:
            late.say(Update("an-old-task", 1, STATS))

    with agents(broker, tmp_path, "a"):
        server.run(observer=send_late)

    assert "closed" in late.hear(Ack).problem
    assert {e.device for e in server.seen(events.UpdateTaken)} == {"a"}


def test_a_second_device_with_the_same_id_is_turned_away(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=2)
    turned_away = threading.Event()
    twins: list[Running] = []

    def train_when_twin_is_gone(artifact: Artifact, sides: dict[Any, Any], frozen: dict[Any, Any]) -> PortableTrainer:
        assert turned_away.wait(WAIT_S)
        return PortableTrainer(artifact)

    def watch(event: Any) -> None:
        if isinstance(event, events.StagePlanned) and not twins:
            twins.append(Running(broker, "twin", tmp_path / "second"))
        if isinstance(event, events.DeviceTurnedAway):
            turned_away.set()

    first = Running(broker, "twin", tmp_path / "first", make_trainer=train_when_twin_is_gone)
    server.run(observer=watch)
    twins[0].thread.join(WAIT_S)
    twins[0].stop()
    first.stop()

    assert isinstance(twins[0].error, IdentityTaken)
    assert "another --device" in str(twins[0].error)
    assert first.error is None
    assert len(server.seen(events.RoundClosed)) == 2


def test_a_device_whose_data_does_not_fit_is_turned_away_with_the_reason(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    misfit = Scripted(broker, "misfit")
    odd = report(data=DataSummary(samples=1, holdout=1, input_shape=[5], classes=CLASSES))

    with agents(broker, tmp_path, "a"):
        server.run(observer=lambda e: misfit.say(odd) if isinstance(e, events.StagePlanned) else None)

    dismissal = misfit.hear(Dismiss)
    assert dismissal.why == "misfit"
    assert "shape [5] but the run needs [3]" in dismissal.reason


def test_an_agent_that_is_turned_away_ends_with_the_reason(broker: MemoryBroker, tmp_path: Path) -> None:
    running = Running(broker, "a", tmp_path)
    dismissal = Dismiss(running.boot, "misfit", "wrong data")
    broker.link("server").send("fedwright/test/down/a", codec.encode(dismissal, sender="server", boot="s"))
    running.thread.join(WAIT_S)
    running.stop()

    assert isinstance(running.error, DeviceError)
    assert "wrong data" in str(running.error)


def test_a_task_over_budget_is_refused_with_numbers_and_the_round_goes_on(broker: MemoryBroker, tmp_path: Path) -> None:
    def too_large(artifact: Artifact, recipe: Recipe) -> None:
        raise OverBudget(212_000_000, 180_000_000)

    server = Server(broker, tmp_path, devices=2, rounds=1)
    small = Running(broker, "small", tmp_path, check=too_large)
    with agents(broker, tmp_path, "a"):
        server.run()
    small.stop()

    failed = [e for e in server.seen(events.TaskFailed) if e.round == 1 and not e.evaluation]
    assert {event.detail for event in failed} == {"small refused: needs 212 MB, 180 MB free"}
    # Batches of 8, 4, 2 and 1 are refused; then there is nothing smaller.
    assert len(failed) == 4
    assert [e.device for e in server.seen(events.UpdateTaken) if e.round == 1 and not e.evaluation] == ["a"]


def test_too_few_updates_stop_the_run_with_a_sentence(broker: MemoryBroker, tmp_path: Path) -> None:
    def too_large(artifact: Artifact, recipe: Recipe) -> None:
        raise OverBudget(2, 1)

    server = Server(broker, tmp_path, devices=1, rounds=1)
    small = Running(broker, "small", tmp_path, check=too_large)
    with pytest.raises(NoQuorum, match="round 1 got 0 of the 1 updates it needs"):
        server.run()
    small.stop()


def test_a_run_that_stopped_for_lack_of_answers_goes_on_when_it_is_resumed(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1, deadline_s=0.3)
    silent = Scripted(broker, "a")
    in_background(silent.join)
    with pytest.raises(NoQuorum, match="no answer before the deadline"):
        server.run()
    silent.link.close()

    server.options = replace(server.options, deadline_s=WAIT_S)
    with agents(broker, tmp_path, "a"):
        server.run()

    assert [e.device for e in server.seen(events.UpdateTaken) if e.round == 1 and not e.evaluation] == ["a"]


def test_too_few_devices_stop_the_run_with_a_sentence(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1, join_timeout_s=0.2)
    with pytest.raises(NoQuorum, match="only 0 of 1 devices are present after 0 s"):
        server.run()


def test_the_run_goes_on_after_the_broker_was_away(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=2)

    def cut(event: Any) -> None:
        if isinstance(event, events.StagePlanned) and event.round == 2:
            broker.stop()
            threading.Timer(0.3, broker.start).start()

    with agents(broker, tmp_path, "a", "b"):
        server.run(observer=cut)

    assert len(server.seen(events.RoundClosed)) == 2
    assert not server.seen(events.TaskFailed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    broker = MemoryBroker()
    folder = tmp_path_factory.mktemp("undisturbed")
    with agents(broker, folder, "a", "b"):
        return Server(broker, folder, devices=2, rounds=3).run().state().to_bytes()


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_a_server_that_dies_at_any_event_resumes_and_ends_with_the_same_bytes(
    broker: MemoryBroker, tmp_path: Path, undisturbed: bytes, moment: int
) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=3)
    with agents(broker, tmp_path, "a", "b"):
        with pytest.raises(Killed):
            server.run(observer=die_at_event(moment))
        state = server.run().state().to_bytes()

    assert state == undisturbed
    assert [closed.position.round for closed in server.store.closed()] == [1, 2, 3]


def test_a_device_that_restarts_in_the_middle_of_training_continues_its_task(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1)
    steps: list[int] = []

    class Dying(PortableTrainer):
        def step(self, batch: dict[str, NDArray[Any]], **rest: Any) -> StepResult:
            steps.append(1)
            if len(steps) == 3:
                first.agent.stop()
            return super().step(batch, **rest)

    first = Running(broker, "a", tmp_path, make_trainer=lambda a, s, f: Dying(a), checkpoint_s=0.0)
    thread = in_background(server.run)
    first.thread.join(WAIT_S)
    assert isinstance(first.link, MemoryLink)
    first.link.drop()
    first.journal.close()
    second = Running(broker, "a", tmp_path, make_trainer=lambda a, s, f: Dying(a), checkpoint_s=0.0)
    thread.join(WAIT_S)
    second.stop()

    # 24 samples, batches of 8, two epochs: six steps in all, none of them done twice.
    [taken] = [e for e in server.seen(events.UpdateTaken) if e.round == 1 and not e.evaluation]
    assert taken.stats.steps == 6
    assert len(steps) == 6


def test_a_refusal_is_final_for_its_task(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1, deadline_s=2.0)
    picky = Scripted(broker, "picky")

    def play() -> None:
        picky.join()
        task = picky.hear(Task)
        picky.say(Refusal(task.task, "failed", "no"))
        picky.hear(Ack)
        picky.say(Update(task.task, task.round, STATS))

    with agents(broker, tmp_path, "a"):
        in_background(play)
        server.run()

    assert [e.device for e in server.seen(events.UpdateTaken) if e.round == 1 and not e.evaluation] == ["a"]


def test_an_update_that_is_not_inline_is_asked_for(broker: MemoryBroker, tmp_path: Path) -> None:
    server = Server(broker, tmp_path, devices=1, rounds=1, deadline_s=1.0)
    big = Scripted(broker, "big")
    gets: list[Get] = []

    def play() -> None:
        big.join()
        task = big.hear(Task)
        blob = tensors.save({name: np.zeros_like(value) for name, value in start_weights().items()})
        big.say(Update(task.task, task.round, STATS, make_ref(blob, chunk_bytes=1024, inline=False)))
        gets.append(big.hear(Get))

    player = in_background(play)
    with pytest.raises(NoQuorum):
        server.run()
    player.join(WAIT_S)

    assert gets[0].chunks == [0]
