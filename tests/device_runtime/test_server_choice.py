"""Whom a device listens to: one server for good, or the edges of a list while they are alive."""

import pytest

from fedwright.device_runtime.server_choice import STALE_S, DeviceIdentity, ServerChoice
from fedwright.protocol import codec, topics
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import Challenge, Dismiss, Envelope, Here


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_home(*further: str) -> tuple[ServerChoice, Clock]:
    clock = Clock()
    return ServerChoice(DeviceIdentity("pi", "one", "boot", None, further, 10.0), clock=clock), clock


def test_a_device_of_one_server_stays() -> None:
    home, clock = make_home()
    clock.now_s = 1e6

    assert not home.is_silent(connected=True)


def test_a_silent_edge_is_left_in_turn() -> None:
    home, clock = make_home("two", "three")
    visited = []
    for _ in range(4):
        clock.now_s += 9
        assert not home.is_silent(connected=True)
        clock.now_s += 1
        assert home.is_silent(connected=True)
        home.move()
        visited.append(home.fleet)

    assert visited == ["two", "three", "one", "two"]
    assert home.up == topics.up("two", "pi")


def test_a_word_of_the_edge_is_enough_to_stay() -> None:
    home, clock = make_home("two")
    clock.now_s = 9.0
    home.open(topics.shared("one"), codec.encode(Here(), sender="server", boot="s"))
    clock.now_s = 18.0

    assert not home.is_silent(connected=True)


def test_a_broken_link_says_nothing_about_the_edge() -> None:
    home, clock = make_home("two")
    clock.now_s = 100.0

    assert not home.is_silent(connected=False)
    assert not home.is_silent(connected=True)


def test_an_edge_that_was_left_is_not_listened_to() -> None:
    home, _ = make_home("two")
    home.move()
    payload = codec.encode(Challenge(), sender="server", boot="s")

    assert home.open(topics.down("one", "pi"), payload) is None
    assert home.open(topics.down("two", "pi"), payload) is not None


def test_an_old_order_is_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = make_home()
    topic = topics.down("one", "pi")
    order = Dismiss("boot", "misfit", "leave")
    monkeypatch.setattr("time.time", lambda: 10 * STALE_S)
    new = codec.encode(order, sender="server", boot="s")
    monkeypatch.setattr("time.time", lambda: 8 * STALE_S)
    old = codec.encode(order, sender="server", boot="s")

    assert isinstance(home.open(topic, new), Envelope)
    with pytest.raises(BadMessage, match="dismiss is older than what the server said since"):
        home.open(topic, old)
