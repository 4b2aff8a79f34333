"""Whom a device listens to: one server for good, or the edges of a list while they are alive."""

from typing import Any

import pytest

from fedwright.device_runtime.server_choice import DeviceIdentity, ServerChoice
from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import Ack, Challenge, Dismiss, Here, Recipe, Returns, Task
from helpers.present import present

HOUR = 3600.0
DAY = 24 * HOUR
LEAVE = Dismiss("boot", "misfit", "leave")


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


def signed(body: Any, *, at_s: Any = 0.0, order: Any = codec.UNORDERED) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: at_s)
        return codec.encode(body, sender="server", boot="s", sign=lambda payload: bytes(64), order=order)


def make_enrolled() -> tuple[ServerChoice, Clock]:
    clock = Clock()
    return ServerChoice(DeviceIdentity("pi", "one", "boot", lambda message, signature: True), clock=clock), clock


def hear(home: Any, payload: Any) -> Any:
    return home.open(topics.down("one", "pi"), payload)


def test_orders_are_numbered_and_a_clock_two_days_ahead_blocks_nothing() -> None:
    home, _ = make_enrolled()

    hear(home, signed(LEAVE, at_s=2 * DAY, order=codec.Order(1, 1)))

    assert hear(home, signed(LEAVE, at_s=0.0, order=codec.Order(1, 2))) is not None
    assert hear(home, signed(LEAVE, at_s=-DAY, order=codec.Order(2, 1))) is not None


@pytest.mark.parametrize("earlier", [codec.Order(1, 9), codec.Order(2, 4), codec.UNORDERED], ids=str)
def test_an_order_that_somebody_kept_is_not_obeyed_later(earlier: Any) -> None:
    home, _ = make_enrolled()
    kept = signed(LEAVE, at_s=10 * DAY, order=earlier)
    hear(home, signed(LEAVE, order=codec.Order(2, 5)))

    with pytest.raises(BadMessage, match="dismiss is older than what the server said since"):
        hear(home, kept)


def test_an_order_that_is_delivered_twice_is_no_older() -> None:
    home, _ = make_enrolled()
    order = signed(LEAVE, order=codec.Order(2, 5))

    assert hear(home, order) is not None
    assert hear(home, order) is not None


def shard_task(edge: str) -> Task:
    ref, recipe = make_ref(b"blob", inline=False), Recipe(batch=8, learning_rate=0.1, seed=3)
    return Task("t", "boot-of-edge", "run", 1, ref, ref, recipe, Returns(), deadline_s=5.0, shard=edge)


def test_a_task_for_all_devices_of_another_edge_may_have_been_signed_before() -> None:
    """The host sends one edge its task before another; a device that comes from there must obey it."""
    identity = DeviceIdentity("pi", "one", "boot", lambda message, signature: True, ("two",))
    home = ServerChoice(identity, clock=Clock())
    home.open(topics.shared("one"), signed(shard_task("one"), order=codec.Order(1, 9)))
    home.move()
    found = home.open(topics.shared("two"), signed(shard_task("two"), order=codec.Order(1, 8)))

    assert home.is_for_us(present(found).body)  # type: ignore[arg-type]
    assert not home.is_for_us(shard_task("one"))
    with pytest.raises(BadMessage, match="task is older than what the server said since"):
        home.open(topics.shared("two"), signed(shard_task("two"), order=codec.Order(1, 7)))


def test_an_edge_may_pass_an_acknowledgement_on_later() -> None:
    home, _ = make_enrolled()
    hear(home, signed(LEAVE, order=codec.Order(2, 5)))

    assert hear(home, signed(Ack("t"), order=codec.Order(1, 1))) is not None


def test_a_server_of_an_earlier_release_may_be_two_days_ahead_once() -> None:
    home, clock = make_enrolled()
    hear(home, signed(LEAVE, at_s=100 * DAY))
    hear(home, signed(LEAVE, at_s=102 * DAY))
    clock.now_s = 5.0

    assert hear(home, signed(LEAVE, at_s=100 * DAY + 5)) is not None
    clock.now_s = 2 * HOUR
    hear(home, signed(LEAVE, at_s=100 * DAY + 2 * HOUR))
    with pytest.raises(BadMessage, match="dismiss is older"):
        hear(home, signed(LEAVE, at_s=100 * DAY))
