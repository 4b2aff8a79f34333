"""The server's part in a secure sum: devices that leave, are wrong or offer bad keys; only the sum is learned."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts
from fedwright.protocol.crypto.x25519 import public_key
from fedwright.protocol.errors import NoQuorum, ProtocolError
from fedwright.protocol.messages import Answer, Ask, Gone
from fedwright.server_runtime.blocks.scores import heterogeneity
from fedwright.server_runtime.methods.base import SumRequest, SumResult
from fedwright.server_runtime.rounds.secure_sum import add_up
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.transport.device_channel import Heard
from helpers.fleet import report

COUNTS = {"a": [9, 1, 0], "b": [2, 2, 6], "c": [0, 5, 5], "d": [4, 4, 2]}
BOOT = "boot"


class Fleet:
    """Devices that answer at once; `changes[device]` turns an honest answer into what a device says instead."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.hidden = {
            device: HiddenCounts(device, counts, secret=bytes([number]) * 32, folder=folder / device)
            for number, (device, counts) in enumerate(COUNTS.items(), 1)
        }
        self.changes = changes
        self.asked: list[tuple[str, str]] = []
        self.said: list[Answer] = []
        self._events = [Heard(device, BOOT, report()) for device in COUNTS]
        self.tracker = TaskTracker(cast(Any, self), None, store=MemoryRoundStore(), reader=None)
        self.tracker.gather(len(COUNTS), timeout_s=1.0)

    def edge_of(self, device: str) -> str | None:
        """See Channel."""

    def ask(self, device: str, ask: Ask) -> None:
        """See Channel."""
        self.asked.append((ask.stage, device))
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
            **{"keys": keys, "samples": dict.fromkeys(COUNTS, 10), "length": 3, "smoothing": 0.1, **changes}
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


def pooled(*devices: str) -> tuple[int, ...]:
    return tuple(np.sum([COUNTS[device] for device in devices], axis=0).tolist())


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


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    noise = at("mask", lambda a: structs.replace(a, masked=bytes(range(24))))
    with pytest.raises(ProtocolError, match="the counts of 4 devices add up to more than their 40 samples"):
        Fleet(tmp_path, c=noise).add_up()


def test_more_counts_than_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="add up to more than their 20 samples"):
        Fleet(tmp_path).add_up(samples=dict.fromkeys(COUNTS, 5))


def test_a_key_of_low_order_leaves_its_device_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(tmp_path)
    keys = {**fleet.wanted().keys, "d": bytes(32)}
    summed = fleet.add_up(keys=keys)

    assert summed.pooled == pooled("a", "b", "c")
    assert "device d is left out of a secure sum: a public key is of low order" in caplog.text


def test_two_devices_are_too_few(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, c=stay_silent, d=stay_silent)
    with pytest.raises(NoQuorum, match="a secure sum needs 3 devices that answer but has 2; start more devices"):
        fleet.add_up()


def test_answers_to_another_sum_are_not_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    summed = Fleet(tmp_path, d=at("mask", lambda a: structs.replace(a, sum="another"))).add_up()
    assert summed.pooled == pooled("a", "b", "c")


def test_keys_are_those_of_the_secrets(tmp_path: Path) -> None:
    assert Fleet(tmp_path).hidden["a"].public == public_key(b"\x01" * 32)
