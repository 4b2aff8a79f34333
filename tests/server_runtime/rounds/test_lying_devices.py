"""Nothing that a device sends ends a run: lies in figures and tensors are that device's loss alone."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol import tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Challenge, DataSummary, Dismiss, Gone, Stats, Task, Update
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from helpers.fleet import WAIT_S, Scripted, Server, agents, report, setting
from helpers.tiny_artifact import CLASSES, FEATURES

STATS = Stats(samples=24, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
QUIET = Stats(samples=0, steps=0, train_s=0.0, cpu_s=0.0, peak_rss_bytes=1)


@pytest.fixture
def broker() -> Any:
    return MemoryBroker()


def change(value: float, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"W": np.full((FEATURES, CLASSES), value, dtype), "b": np.full(CLASSES, value, dtype)}


class Liar:
    """A device that joins with some report and answers every training task with the same update."""

    _leaves = False

    def __init__(
        self, broker: MemoryBroker, device: str, *, stats: Stats = STATS, values: Any = None, said: Any = None
    ) -> None:
        self.acks: list[Ack] = []
        self._device = Scripted(broker, device)
        self._stats, self._values = stats, change(0.01) if values is None else values
        self._said = said or report()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        self._device.hear(Challenge)
        self._device.say(self._said)
        while True:
            body = self._device.hear((Task, Ack, Dismiss))
            if isinstance(body, Dismiss):
                return
            if isinstance(body, Ack):
                self.acks.append(body)
            else:
                self._device.say(Ack(body.task))
                self._device.say(self._answer(body))
                if self._leaves:
                    self._device.say(Gone())
                    return

    def _answer(self, task: Task) -> Update:
        if task.returns.weights == "none":
            return Update(task.task, task.round, QUIET)
        return Update(task.task, task.round, self._stats, make_ref(tensors.save(self._values)))

    def join(self) -> None:
        """Wait until the server has sent it away."""
        self._thread.join(WAIT_S)


def play(broker: Any, folder: Any, liar: Liar, *, method: Any = None, **options: Any) -> Any:
    """A run of two honest devices and the liar, to its end."""
    server = Server(broker, folder, devices=3, **{"rounds": 2, **options})
    server.first_wait_s = WAIT_S
    with agents(broker, folder, "a", "b"):
        ended = server.run(method=method)
        liar.join()
    return server, ended


BAD = {
    "no samples": (structs.replace(STATS, samples=0), change(0.01), "stats.samples is 0"),
    "float64": (STATS, change(0.01, np.float64), "tensor W has type float64"),
    "float64 of 1e300": (STATS, change(1e300, np.float64), "tensor W has type float64"),
    "float32 of 3e38": (STATS, change(3e38), "tensor W reaches 3e+38"),
    "infinite time": (structs.replace(STATS, train_s=float("inf")), change(0.01), "stats.train_s is inf"),
    "energy of all suns": (structs.replace(STATS, energy_j=1e300), change(0.01), "stats.energy_j is 1e+300"),
    "errors whose sum is none": (
        structs.replace(STATS, holdout=9, measures_after={"mae": 1e308}),
        change(0.01),
        "stats.measures_after has mae 1e+308",
    ),
    "loss that is no number": (structs.replace(STATS, loss_last=float("nan")), change(0.01), "stats.loss_last is nan"),
}


@pytest.mark.parametrize(("stats", "values", "word"), BAD.values(), ids=BAD)
def test_an_impossible_update_is_rejected_and_the_run_goes_on(
    broker: Any, tmp_path: Path, stats: Any, values: Any, word: Any
) -> None:
    liar = Liar(broker, "liar", stats=stats, values=values)
    server, method = play(broker, tmp_path, liar)

    assert [event.round for event in server.seen(events.RoundClosed)] == [1, 2]
    failed = [event for event in server.seen(events.TaskFailed) if not event.evaluation]
    assert [(event.device, event.round) for event in failed] == [("liar", 1), ("liar", 2)]
    assert all(word in event.detail for event in failed)
    assert sum(word in ack.problem for ack in liar.acks) == 2
    assert all(np.isfinite(value).all() for value in method.state().tensors.values())


class Fragile(FedAvg):
    """Fails at one device's update after it has changed its state, or at the end of the round."""

    def __init__(self, *, at: str) -> None:
        super().__init__(FedAvgParams(), setting())
        self._at, self._seen = at, False

    def absorb(self, device: Any, update: Any) -> None:
        super().absorb(device, update)
        if device == "liar" and self._at == "absorb":
            raise ZeroDivisionError("nothing to divide by")
        self._seen = self._seen or device == "liar"

    def advance(self) -> Any:
        seen, self._seen = self._seen, False
        metrics = super().advance()
        if seen and self._at == "advance":
            raise ValueError("cannot be put together")
        if seen and self._at == "model":
            self._weights["W"] = self._weights["W"] * np.float32("nan")
        return metrics

    def restore(self, state: Any) -> None:
        super().restore(state)
        self._seen = False


@pytest.mark.parametrize("at", ["absorb", "advance", "model"])
def test_an_update_that_a_method_fails_at_is_left_out_as_if_it_had_never_come(
    broker: Any, tmp_path: Path, at: Any
) -> None:
    liar = Liar(broker, "liar")
    server, method = play(broker, tmp_path, liar, method=Fragile(at=at))

    honest = Server(MemoryBroker(), tmp_path / "honest", devices=2)
    with agents(honest.broker, tmp_path / "honest", "a", "b"):
        expected = honest.run()
    assert method.state().to_bytes() == expected.state().to_bytes()
    failed = [event for event in server.seen(events.TaskFailed) if not event.evaluation]
    assert [(event.device, event.round) for event in failed] == [("liar", 1), ("liar", 2)]
    assert [ack.of for ack in liar.acks if ack.problem] == [
        reply.task for reply in map(server.store.reply, dict.fromkeys(ack.of for ack in liar.acks)) if reply.detail
    ]
    assert sum("liar" in ack.problem for ack in liar.acks) == 2


class Choosy(FedAvg):
    """Cannot plan for a device that has a pixel's deviation of more than 1."""

    def assign(self, reports: Any, round_number: Any) -> Any:
        for device, told in reports.items():
            if (told.data.pixel_std or 0) > 1:
                raise ValueError(f"{device} is beyond me")
        return super().assign(reports, round_number)


def test_a_report_that_a_method_cannot_plan_with_leaves_its_device_out(broker: Any, tmp_path: Path) -> None:
    summary = DataSummary(samples=24, holdout=8, input_shape=[FEATURES], classes=CLASSES, pixel_std=5.0)
    liar = Liar(broker, "liar", said=report(data=summary))
    server, _ = play(broker, tmp_path, liar, method=Choosy(FedAvgParams(), setting()))

    assert [event.round for event in server.seen(events.RoundClosed)] == [1, 2]
    assert {
        device for event in server.seen(events.UpdateTaken) if not event.evaluation for device in [event.device]
    } == {
        "a",
        "b",
    }
    words = [event for event in server.seen(events.Warned) if event.device == "liar"]
    assert [event.fate for event in words] == ["left out"]
    assert "liar is beyond me" in words[0].text


def test_a_device_without_samples_does_not_train(broker: Any, tmp_path: Path) -> None:
    summary = DataSummary(samples=0, holdout=8, input_shape=[FEATURES], classes=CLASSES)
    liar = Liar(broker, "liar", said=report(data=summary))
    server, _ = play(broker, tmp_path, liar)

    planned = [event.devices for event in server.seen(events.StagePlanned) if not event.evaluation]
    assert planned == [("a", "b"), ("a", "b")]
    assert len([event for event in server.seen(events.Warned) if event.device == "liar"]) == 1


def test_a_claim_of_samples_counts_as_far_as_the_report_and_the_fleet_bear_it_out(broker: Any, tmp_path: Path) -> None:
    summary = DataSummary(samples=2**53, holdout=8, input_shape=[FEATURES], classes=CLASSES)
    liar = Liar(broker, "liar", stats=structs.replace(STATS, samples=2**53), said=report(data=summary))
    server, _ = play(broker, tmp_path, liar, rounds=1)

    taken = {e.device: e.stats.samples for e in server.seen(events.UpdateTaken) if not e.evaluation}
    # The median report is of 24 samples, and ten times that is the most.
    assert taken == {"a": 24, "b": 24, "liar": 240}


def test_a_large_change_is_held_to_the_median_of_its_round(broker: Any, tmp_path: Path) -> None:
    liar = Liar(broker, "liar", values=change(1000.0))
    _, method = play(broker, tmp_path, liar, rounds=1)

    honest = Server(MemoryBroker(), tmp_path / "honest", devices=2, rounds=1)
    with agents(honest.broker, tmp_path / "honest", "a", "b"):
        expected = honest.run()
    moved = max(np.abs(value - expected.state().tensors[name]).max() for name, value in method.state().tensors.items())
    # A third of 1000 without the limit.
    assert moved < 5


def test_a_device_that_does_not_fit_is_given_up(broker: Any, tmp_path: Path) -> None:
    summary = DataSummary(samples=24, holdout=8, input_shape=[FEATURES + 1], classes=CLASSES)
    liar = Liar(broker, "liar", said=report(data=summary))
    server, _ = play(broker, tmp_path, liar, join_timeout_s=0.5)

    assert [event.round for event in server.seen(events.RoundClosed)] == [1, 2]
    assert [event.device for event in server.seen(events.DeviceTurnedAway)] == ["liar"]


class Turncoat(Liar):
    """Fits when it joins, and reports something else with its first update."""

    def _answer(self, task: Task) -> Update:
        summary = DataSummary(samples=24, holdout=8, input_shape=[FEATURES + 1], classes=10**6)
        self._device.say(report(data=summary))
        return super()._answer(task)


def test_a_device_that_reports_something_else_later_is_turned_away_then(broker: Any, tmp_path: Path) -> None:
    server, _ = play(broker, tmp_path, Turncoat(broker, "liar"), join_timeout_s=0.5)

    assert [event.round for event in server.seen(events.RoundClosed)] == [1, 2]
    assert [event.device for event in server.seen(events.DeviceTurnedAway)] == ["liar"]
    planned = [event.devices for event in server.seen(events.StagePlanned) if not event.evaluation]
    assert planned == [("a", "b", "liar"), ("a", "b")]


def test_a_device_that_leaves_a_run_that_began_is_given_up(broker: Any, tmp_path: Path) -> None:
    class Leaver(Liar):
        """Goes after its first update."""

        _leaves = True

    server, _ = play(broker, tmp_path, Leaver(broker, "liar"), rounds=3, join_timeout_s=0.5)

    assert [event.round for event in server.seen(events.RoundClosed)] == [1, 2, 3]
    words = [event.text for event in server.seen(events.Warned)]
    # It is waited for once, before the second round.
    assert words == ["only 2 of 3 devices are present after 0 s; the run goes on with them"]


@pytest.mark.parametrize("buffer", [1, 2])
def test_a_large_change_is_held_in_asynchronous_rounds_too(broker: Any, tmp_path: Path, buffer: int) -> None:
    class Late(Liar):
        """Honest in its second and third update alone."""

        sent = 0

        def _answer(self, task: Task) -> Update:
            self.sent += 1
            self._values = change(0.01 if 1 < self.sent <= 3 else 1e5)
            return super()._answer(task)

    _, method = play(broker, tmp_path, Late(broker, "liar"), rounds=30, buffer=buffer)

    assert max(float(np.abs(value).max()) for value in method.state().tensors.values()) < 100
