"""The server's part in sums of counts: devices that leave or are wrong; only the sum is learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts, OwnCounts, in_steps
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.messages import BlobRef, Gone, SumAnswer, SumAsk
from fedwright.protocol.secure.roster import unpack_roster
from fedwright.server_runtime.blocks.scores import heterogeneity
from fedwright.server_runtime.methods.base import SumRequest, SumResult
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.secure import talk
from fedwright.server_runtime.rounds.secure.counts import NAME, CountAdder
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.transport.device_channel import Heard
from helpers.fleet import TinyBuilder, report

COUNTS = {"a": (9, 1, 0), "b": (2, 2, 6), "c": (0, 5, 5), "d": (4, 4, 2)}
BOOT = "boot"


class Fleet:
    """Devices that answer at once; `changes[device]` turns an honest answer into what a device says instead."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.hidden = {d: HiddenCounts(d, OwnCounts(own), folder=folder / d) for d, own in COUNTS.items()}
        self.blobs = BlobStore(folder / "blobs")
        self.store = MemoryRoundStore()
        self.events: list[Any] = []
        self.changes = changes
        self.asked: list[tuple[str, str]] = []
        self.rosters: list[bytes] = []
        self.options = SecureOptions()
        self.said: list[SumAnswer] = []
        self._events = [Heard(device, BOOT, report()) for device in COUNTS]
        planner = Planner("run", TinyBuilder(), self.blobs, 10.0)
        self.tracker = TaskTracker(
            cast(Any, self), planner, store=self.store, reader=UpdateReader(planner), observer=self.events.append
        )
        self.tracker.gather(len(COUNTS), timeout_s=1.0)

    def edge_of(self, device: str) -> str | None:
        """See Channel."""

    def _offer(self, data: bytes, chunk_bytes: int) -> BlobRef:
        self.blobs.put_bytes(data)
        return make_ref(data, chunk_bytes=chunk_bytes)

    def ask(self, device: str, ask: SumAsk) -> None:
        """See Channel."""
        self.asked.append((ask.stage, device))
        self.rosters += [ask.roster] if ask.stage == "share" else []
        answer = self.hidden[device].answer(ask, self._offer)
        answer = self.changes.get(device, lambda honest: honest)(answer)
        self.said += [answer] if isinstance(answer, SumAnswer) else []
        self._events += [Heard(device, BOOT, answer)] if answer is not None else []

    def poll(self, timeout_s: float) -> list[Heard]:
        """See Channel."""
        events, self._events = self._events, []
        return events

    def adder(self) -> CountAdder:
        return CountAdder(self.tracker, self.blobs, self.store, options=self.options, deadline_s=0.3)

    def add_up(self, **changes: Any) -> SumResult:
        wanted: dict[str, Any] = {"samples": dict.fromkeys(COUNTS, 10), "length": 3, "smoothing": 0.1}
        return self.adder().add_up(SumRequest(**{**wanted, **changes}))

    def warnings(self) -> str:
        return "\n".join(f"{event.device}: {event.text}" for event in self.events if isinstance(event, events.Warned))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "RETURN_S", 0.05)


def at(stage: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """Honest but for one stage."""
    return lambda answer: change(answer) if answer.stage == stage else answer


def pooled(*devices: str) -> tuple[int, ...]:
    return tuple(np.sum([COUNTS[device] for device in devices], axis=0).tolist())


def test_the_sum_is_exact_and_the_scores_are_the_plain_ones_in_steps(tmp_path: Path) -> None:
    summed = Fleet(tmp_path).add_up()

    assert summed.pooled == pooled("a", "b", "c", "d") == (15, 12, 13)
    plain = heterogeneity([np.array(counts) for counts in COUNTS.values()])
    assert list(summed.scores.values()) == [in_steps(score) for score in plain.tolist()]


def test_sums_of_counts_have_the_terms_of_the_run(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.options = SecureOptions(neighbours=40, threshold=0.8)

    assert fleet.add_up().pooled == pooled("a", "b", "c", "d")
    assert {(one.neighbours, one.threshold) for one in map(unpack_roster, fleet.rosters)} == {(40, 0.8)}


@pytest.mark.parametrize("stage", ["keys", "share", "mask"])
@pytest.mark.parametrize("absence", [lambda answer: Gone(), lambda answer: None], ids=["leaves", "stays silent"])
def test_a_device_that_goes_before_its_counts_came_is_left_out(
    tmp_path: Path, stage: str, absence: Callable[..., Any]
) -> None:
    assert Fleet(tmp_path, d=at(stage, absence)).add_up().pooled == pooled("a", "b", "c")


@pytest.mark.parametrize("stage", ["agree", "open"])
def test_one_that_goes_after_its_counts_came_is_in_the_sum(tmp_path: Path, stage: str) -> None:
    summed = Fleet(tmp_path, d=at(stage, lambda answer: Gone())).add_up()

    assert summed.pooled == pooled("a", "b", "c", "d")


def test_a_device_that_comes_later_is_only_scored(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    summed = fleet.add_up(pooled=(15, 12, 13), samples={"a": 10})

    assert summed.pooled == (15, 12, 13)
    assert fleet.asked == [("score", "a")]


@pytest.mark.parametrize("score", [None, -1.0, 0.8, float("nan")])
def test_a_score_that_cannot_be_is_not_used(tmp_path: Path, score: float | None) -> None:
    fleet = Fleet(tmp_path, b=at("score", lambda a: structs.replace(a, score=score)))
    summed = fleet.add_up()

    assert summed.scores.keys() == {"a", "c", "d"}
    assert "b: in a sum of counts: its score is" in fleet.warnings()


def test_where_masks_are_wrong_all_devices_count_as_alike(tmp_path: Path) -> None:
    def noise(answer: SumAnswer) -> SumAnswer:
        return structs.replace(answer, masked=fleet._offer(bytes(range(1, 13)), 1024))

    fleet = Fleet(tmp_path, c=at("mask", noise))
    assert fleet.add_up() == SumResult((), dict.fromkeys("abcd", 0.0))
    assert "the counts of a, b, c, d cannot be used" in fleet.warnings()
    assert "no sum of their counts came about" in fleet.warnings()
    assert fleet.store.sum(NAME) is None


def test_more_counts_than_samples_are_not_believed(tmp_path: Path) -> None:
    assert Fleet(tmp_path).add_up(samples=dict.fromkeys(COUNTS, 2)).pooled == ()


def test_with_two_devices_nothing_is_summed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, c=lambda answer: None, d=lambda answer: None)

    assert fleet.add_up() == SumResult((), dict.fromkeys("abcd", 0.0))
    assert "2 devices gave keys but a sum takes 3" in fleet.warnings()


@pytest.mark.parametrize("saves", [0, 1, 2])
def test_a_server_that_is_killed_goes_on_with_the_same_sum(
    tmp_path: Path, saves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, left = Fleet(tmp_path), [saves]
    save = fleet.store.save_sum

    def killed(name: str, record: bytes) -> None:
        save(name, record)
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet.store, "save_sum", killed)
    with pytest.raises(KeyboardInterrupt):
        fleet.add_up()

    assert fleet.add_up().pooled == pooled("a", "b", "c", "d")
    fleet.adder().forget()
    assert fleet.store.sum(NAME) is None
