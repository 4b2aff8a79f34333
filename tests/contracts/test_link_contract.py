"""Every link keeps the same promises: in memory, over mosquitto (MQTT 5), over amqtt (MQTT 3.1.1)."""

import threading
import time
from collections.abc import Iterator

import pytest

from fedwright.protocol.link import Link, Received, mqtt
from helpers.links import Bench, make_bench, take, wait_until


@pytest.fixture(
    params=[
        "memory",
        pytest.param("mosquitto", marks=pytest.mark.broker),
        pytest.param("amqtt", marks=pytest.mark.broker),
    ]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = make_bench(request.param)
    yield made
    made.close()


@pytest.fixture
def pair(bench: Bench) -> tuple[Link, Link]:
    """A sender and a receiver that reads `t/#`."""
    sender, receiver = bench.link("sender"), bench.link("receiver")
    receiver.subscribe("t/#")
    return sender, receiver


@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "unreliable"])
def test_messages_of_one_sender_and_topic_keep_their_order(pair: tuple[Link, Link], reliable: bool) -> None:
    sender, receiver = pair
    sent = [b"%d" % number for number in range(300)]

    for payload in sent:
        sender.send("t/order", payload, reliable=reliable)

    assert take(receiver, 300) == [Received("t/order", payload) for payload in sent]


def test_empty_and_large_payloads_arrive_unchanged(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair
    large = bytes(range(256)) * 8192

    sender.send("t/a", b"")
    sender.send("t/b", large)

    assert take(receiver, 2) == [Received("t/a", b""), Received("t/b", large)]


@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "unreliable"])
def test_payload_and_tail_are_one_message(pair: tuple[Link, Link], reliable: bool) -> None:
    sender, receiver = pair
    tails = [b"", b"tail", bytes(range(256)) * 8192, b"x" * 16_000, b"after"]

    for tail in tails:
        sender.send("t/x", b"head ", tail=memoryview(tail), reliable=reliable)

    assert take(receiver, 5) == [Received("t/x", b"head " + tail) for tail in tails]
    assert sender.sent_bytes == receiver.received_bytes == sum(5 + len(tail) for tail in tails)


@pytest.mark.parametrize(
    ("pattern", "topics", "arrive"),
    [
        ("x/+", ["x", "x/1", "x/2/deep", "y/1"], ["x/1"]),
        ("x/+/z", ["x/1/z", "x/1/y", "x/z"], ["x/1/z"]),
        ("x/#", ["x/1", "x/2/deep", "y"], ["x/1", "x/2/deep"]),
        ("x/1", ["x/1", "x/10", "x/1/2"], ["x/1"]),
    ],
    ids=["one level", "inner level", "all levels", "exact"],
)
def test_patterns_choose_topics(bench: Bench, pattern: str, topics: list[str], arrive: list[str]) -> None:
    sender, receiver = bench.link("sender"), bench.link("receiver")
    receiver.subscribe(pattern)
    receiver.subscribe("end")

    for topic in [*topics, "end"]:
        sender.send(topic, b"")

    assert [message.topic for message in take(receiver, len(arrive) + 1)] == [*arrive, "end"]


def test_links_with_one_name_do_not_throw_each_other_out(bench: Bench) -> None:
    first, second = bench.link("twin"), bench.link("twin")
    first.subscribe("t/1")
    second.subscribe("t/2")

    first.send("t/2", b"to second")
    second.send("t/1", b"to first")

    assert take(first, 1) == [Received("t/1", b"to first")]
    assert take(second, 1) == [Received("t/2", b"to second")]
    assert (first.connects, second.connects) == (1, 1)


def test_reliable_messages_sent_while_the_broker_is_away_arrive_when_it_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A killed broker forgets subscriptions, so the receiver must be back before the sender.
    monkeypatch.setattr(mqtt, "FIRST_DELAY_S", (1.0, 1.0))
    sender = bench.link("sender")
    monkeypatch.setattr(mqtt, "FIRST_DELAY_S", (0.02, 0.02))
    monkeypatch.setattr(mqtt, "LAST_DELAY_S", (0.05, 0.05))
    receiver = bench.link("receiver")
    receiver.subscribe("t/#")
    sent = [b"%d" % number for number in range(50)]

    bench.kill()
    for payload in sent:
        sender.send("t/x", payload)
    bench.restart()

    assert [message.payload for message in take(receiver, 50)] == sent
    assert (sender.connects, receiver.connects) == (2, 2)


def test_unreliable_messages_sent_while_the_broker_is_away_are_dropped(bench: Bench, pair: tuple[Link, Link]) -> None:
    sender, receiver = pair

    bench.kill()
    sender.send("t/x", b"dropped", reliable=False)
    bench.restart()
    wait_until(lambda: sender.connects == 2 and receiver.connects == 2)
    sender.send("t/x", b"after")

    assert take(receiver, 1) == [Received("t/x", b"after")]
    assert sender.sent_bytes == len(b"after")


def test_a_link_that_comes_back_wakes_its_reader(bench: Bench, pair: tuple[Link, Link]) -> None:
    _, receiver = pair
    bench.kill()

    bench.restart()

    assert receiver.receive(20) is None
    assert receiver.connects == 2
    assert receiver.connected


def test_the_last_will_of_a_killed_process_arrives(bench: Bench) -> None:
    receiver = bench.link("receiver")
    receiver.subscribe("will/+")

    bench.die_with_will("will/doomed", b"gone")

    assert take(receiver, 1) == [Received("will/doomed", b"gone")]


def test_a_link_that_closes_leaves_no_last_will(bench: Bench) -> None:
    receiver = bench.link("receiver")
    receiver.subscribe("will/+")
    polite = bench.link("polite", will=("will/polite", b"gone"))

    polite.close()
    receiver.send("will/end", b"")

    assert [message.topic for message in take(receiver, 1)] == ["will/end"]


def test_close_sends_what_is_reliable_first(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair

    for _ in range(40):
        sender.send("t/x", bytes(50_000))
    sender.close()

    assert len(take(receiver, 40)) == 40
    assert not sender.connected


def test_wake_ends_a_waiting_receive(bench: Bench) -> None:
    link = bench.link("sleeper")

    timer = threading.Timer(0.05, link.wake)
    timer.start()
    # Longer than a test may take.
    got = link.receive(3600)
    timer.join()

    assert got is None


def test_wake_before_receive_is_not_lost_and_loses_no_message(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair
    sender.send("t/x", b"kept")
    wait_until(lambda: receiver.received_bytes == 4)

    receiver.wake()

    assert receiver.receive(30) is None
    assert receiver.receive(30) == Received("t/x", b"kept")


def test_receive_gives_up_and_not_before_its_time(bench: Bench) -> None:
    link = bench.link("idle")
    started_s = time.monotonic()

    assert link.receive(0.05) is None
    assert time.monotonic() - started_s > 0.04


def test_bytes_are_counted(pair: tuple[Link, Link]) -> None:
    sender, receiver = pair

    sender.send("t/x", bytes(1000))
    sender.send("t/y", bytes(234), reliable=False)
    sender.send("elsewhere", bytes(1))
    take(receiver, 2)

    assert sender.sent_bytes == 1235
    assert receiver.received_bytes == 1234
    assert sender.received_bytes == 0


def test_a_branch_and_its_link_each_get_their_own_topics(pair: tuple[Link, Link]) -> None:
    sender, stem = pair
    branch = stem.branch("u/")
    branch.subscribe("u/#")

    for topic in ("t/1", "u/1", "t/2", "u/2"):
        sender.send(topic, b"x")

    assert [message.topic for message in take(branch, 2)] == ["u/1", "u/2"]
    assert [message.topic for message in take(stem, 2)] == ["t/1", "t/2"]
    assert (branch.connected, branch.connects, branch.received_bytes) == (True, stem.connects, stem.received_bytes)


def test_both_readers_of_a_link_hear_that_it_came_back(bench: Bench, pair: tuple[Link, Link]) -> None:
    sender, stem = pair
    branch = stem.branch("u/")
    branch.subscribe("u/#")
    before = branch.connects

    bench.kill()
    bench.restart()
    wait_until(lambda: branch.connects > before and sender.connected)
    sender.send("u/1", b"x")
    sender.send("t/1", b"x")

    assert [message.topic for message in take(branch, 1)] == ["u/1"]
    assert [message.topic for message in take(stem, 1)] == ["t/1"]
