"""The server's part in a secure sum: devices that leave, are wrong or offer bad keys; only the sum is learned."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts
from fedwright.protocol.crypto.x25519 import public_key
from fedwright.protocol.messages import Answer, Ask, Gone
from fedwright.server_runtime.blocks.scores import heterogeneity
from fedwright.server_runtime.methods.base import SumRequest, SumResult
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.secure_sum import add_up
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.transport.device_channel import Heard
from helpers.fleet import report

COUNTS = {"a": [9, 1, 0], "b": [2, 2, 6], "c": [0, 5, 5], "d": [4, 4, 2]}
BOOT = "boot"


class Fleet:
    """Devices that answer at once; `changes[device]` turns an honest answer into what a device says instead."""

    def __init__(self, folder: Path, *, more: Mapping[str, list[int]] | None = None, **changes: Any) -> None:
        everyone = COUNTS | dict(more or {})
        self.hidden = {
            device: HiddenCounts(device, counts, secret=bytes([number]) * 32, folder=folder / device)
            for number, (device, counts) in enumerate(everyone.items(), 1)
        }
        self.events: list[Any] = []
        self.asks: list[Ask] = []
        self.changes = changes
        self.asked: list[tuple[str, str]] = []
        self.said: list[Answer] = []
        self._events = [Heard(device, BOOT, report()) for device in everyone]
        self.tracker = TaskTracker(
            cast(Any, self),
            cast(Any, None),
            store=MemoryRoundStore(),
            reader=cast(Any, None),
            observer=self.events.append,
        )
        self.tracker.gather(len(everyone), timeout_s=1.0)

    def edge_of(self, device: str) -> str | None:
        """See Channel."""

    def ask(self, device: str, ask: Ask) -> None:
        """See Channel."""
        self.asked.append((ask.stage, device))
        self.asks.append(ask)
        answer = self.hidden[device].answer(ask)
        answer = self.changes.get(device, lambda honest: honest)(answer)
        self.said += [answer] if isinstance(answer, Answer) else []
        self._events += [Heard(device, BOOT, answer)] if answer is not None else []

    def poll(self, timeout_s: float) -> list[Heard]:
        """See Channel."""
        events, self._events = self._events, []
        return events

    def wanted(self, **changes: Any) -> SumRequest:
        keys = {device: hidden.public for device, hidden in self.hidden.items()}
        return SumRequest(
            **{"keys": keys, "samples": dict.fromkeys(keys, 10), "length": 3, "smoothing": 0.1, **changes}
        )

    def add_up(self, **changes: Any) -> SumResult:
        return add_up(self.tracker, self.wanted(**changes), deadline_s=0.05)


def at(stage: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """Honest but for one stage."""
    return lambda answer: change(answer) if answer.stage == stage else answer


def leave(answer: Answer) -> Gone:
    return Gone()


def stay_silent(answer: Answer) -> None:
    return None


def pooled(*devices: str, extra: list[list[int]] | None = None) -> tuple[int, ...]:
    return tuple(np.sum([COUNTS[device] for device in devices] + (extra or []), axis=0).tolist())


def test_the_sum_and_the_scores_are_the_plain_ones(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    summed = fleet.add_up()

    assert summed.pooled == pooled("a", "b", "c", "d") == (15, 12, 13)
    plain = heterogeneity([np.array(counts) for counts in COUNTS.values()])
    assert list(summed.scores.values()) == plain.tolist()


def test_no_answer_holds_a_count(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.add_up()

    for answer in fleet.said:
        values = np.frombuffer(answer.masked, "<u8")
        assert not np.isin(values, np.arange(100)).any()
    assert {answer.stage for answer in fleet.said} == {"mask", "open", "score"}


@pytest.mark.parametrize("absence", [leave, stay_silent], ids=["leaves", "stays silent"])
def test_a_device_that_gives_a_key_but_no_counts_is_left_out(tmp_path: Path, absence: Callable[..., Any]) -> None:
    fleet = Fleet(tmp_path, d=at("mask", absence))
    summed = fleet.add_up()

    assert summed.pooled == pooled("a", "b", "c")
    opened = [answer for answer in fleet.said if answer.stage == "open"]
    assert [set(answer.pairs) for answer in opened] == [{"d"}] * 3


def test_a_device_that_leaves_before_the_opening_makes_the_sum_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path, d=at("open", leave))
    summed = fleet.add_up()

    assert summed.pooled == pooled("a", "b", "c")
    assert "d" not in summed.scores
    assert [stage for stage, device in fleet.asked if device == "a"] == ["mask", "open", "mask", "open", "score"]
    assert "it begins anew with 3" in caplog.text


def test_a_device_that_comes_later_is_only_scored(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    summed = fleet.add_up(pooled=(15, 12, 13), keys={"a": fleet.hidden["a"].public})

    assert summed.pooled == (15, 12, 13)
    assert fleet.asked == [("score", "a")]


BAD = {
    "short": (at("mask", lambda a: structs.replace(a, masked=a.masked[:-1])), "sent 23 bytes of masked counts but 24"),
    "opens nothing": (at("open", lambda a: structs.replace(a, own=None)), "it opened other seeds"),
    "declines": (at("mask", lambda a: Answer(a.sum, "mask", problem="no key")), "left out of a secure sum: no key"),
}


@pytest.mark.parametrize(("change", "sentence"), BAD.values(), ids=BAD)
def test_a_wrong_answer_leaves_its_device_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[..., Any], sentence: str
) -> None:
    summed = Fleet(tmp_path, d=change).add_up()

    assert summed.pooled == pooled("a", "b", "c")
    assert sentence in caplog.text


@pytest.mark.parametrize("score", [None, -1.0, 0.8, float("nan")])
def test_a_score_that_cannot_be_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, score: float | None
) -> None:
    summed = Fleet(tmp_path, b=at("score", lambda a: structs.replace(a, score=score))).add_up()

    assert summed.scores.keys() == {"a", "c", "d"}
    assert "its score is" in caplog.text


NOISE = at("mask", lambda a: structs.replace(a, masked=bytes(range(24))))


def warnings(fleet: Fleet) -> list[str]:
    return [event.text for event in fleet.events if isinstance(event, events.Warned)]


def test_where_wrong_masks_cannot_be_told_apart_all_devices_count_as_alike(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, c=NOISE)
    summed = fleet.add_up()

    assert summed == SumResult((), dict.fromkeys("abcd", 0.0))
    named, alike = warnings(fleet)
    assert "the counts of a, b, c, d add up to what no counts can come to" in named
    assert "no secure sum of 4 devices came about" in alike


def test_wrong_masks_leave_out_their_group_alone(tmp_path: Path) -> None:
    more = {"e": [1, 0, 0], "f": [0, 1, 0], "g": [0, 0, 1]}
    fleet = Fleet(tmp_path, more=more, c=NOISE)
    summed = fleet.add_up()

    # Groups of a, c, e, g and of b, d, f: every second of seven.
    assert summed.pooled == pooled("b", "d", extra=[[0, 1, 0]]) == (6, 7, 8)
    assert summed.scores.keys() == {*COUNTS, *more}
    assert len(warnings(fleet)) == 1
    assert "the counts of a, c, e, g add up" in warnings(fleet)[0]
    sums = {frozenset(ask.keys) for ask in fleet.asks if ask.stage == "open"}
    assert sums == {frozenset("abcdefg"), frozenset("aceg"), frozenset("bdf")}


def test_more_counts_than_samples_are_not_believed(tmp_path: Path) -> None:
    assert Fleet(tmp_path).add_up(samples=dict.fromkeys(COUNTS, 2)).pooled == ()


def test_a_key_of_low_order_leaves_its_device_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(tmp_path)
    keys = {**fleet.wanted().keys, "d": bytes(32)}
    summed = fleet.add_up(keys=keys)

    assert summed.pooled == pooled("a", "b", "c")
    assert "device d is left out of a secure sum: a public key is of low order" in caplog.text


def test_with_two_devices_nothing_is_summed_and_both_count_as_alike(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, c=stay_silent, d=stay_silent)

    assert fleet.add_up() == SumResult((), dict.fromkeys("abcd", 0.0))
    assert "no secure sum of 4 devices came about" in warnings(fleet)[0]


def test_answers_to_another_sum_are_not_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    summed = Fleet(tmp_path, d=at("mask", lambda a: structs.replace(a, sum="another"))).add_up()
    assert summed.pooled == pooled("a", "b", "c")


def test_keys_are_those_of_the_secrets(tmp_path: Path) -> None:
    assert Fleet(tmp_path).hidden["a"].public == public_key(b"\x01" * 32)
