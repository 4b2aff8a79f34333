"""What is asked of agents that do not know a codec of this release, alone and behind an edge that does not."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Returns, Task
from fedwright.server_runtime.fleet.registry import RegisteredDevice, Registry
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.known_codecs import KnownCodecs
from fedwright.server_runtime.rounds.store.base import Position
from helpers.fleet import Running, Scripted, Server, report, setting

ASKED = Returns(codec="int4", keep_ratio=0.5)


def known_codecs(told: list[events.Event], edge: str | None = None) -> KnownCodecs:
    registry = Registry()
    for name, codecs in (("old", []), ("new", ["int4"]), ("old-edge", []), ("new-edge", ["int4"])):
        registry._put(RegisteredDevice(name, "boot", report(codecs=codecs, edge="edge" in name)))
    return KnownCodecs(registry, lambda device: edge, told.append)


@pytest.mark.parametrize(
    ("device", "edge", "codec"),
    [
        ("new", None, "int4"),
        ("old", None, "int8"),
        ("new", "new-edge", "int4"),
        ("new", "old-edge", "int8"),
        ("old", "new-edge", "int8"),
        ("new", "never-seen", "int4"),
    ],
)
def test_a_device_is_asked_for_what_it_and_its_edge_know(device: str, edge: str | None, codec: str) -> None:
    found = known_codecs([], edge)(device, ASKED)

    assert (found.codec, found.keep_ratio) == (codec, 0.5)


def test_codecs_of_the_first_release_are_asked_of_everybody() -> None:
    returns = Returns(codec="int8")

    assert known_codecs([])("old", returns) is returns


def test_what_is_asked_instead_is_said_once() -> None:
    told: list[events.Event] = []
    known = known_codecs(told)

    for _ in range(3):
        known("old", ASKED)

    assert told == [
        events.Warned(
            "old runs an earlier release, which does not know int4, so that int8 is asked of old; upgrade old",
            "old",
            "earlier release",
        )
    ]


def test_a_run_asks_an_agent_of_this_release_for_its_codec_and_an_earlier_one_for_another(tmp_path: Path) -> None:
    broker = MemoryBroker()
    server = Server(broker, tmp_path, devices=2, rounds=1, quorum_ratio=0.5, deadline_s=2.0)
    method = FedAvg(FedAvgParams(), replace(setting(), returns=ASKED))
    old = Scripted(broker, "old")
    asked: list[str] = []

    def answer() -> None:
        old.join()
        asked.append(old.hear(Task).returns.codec)

    thread = threading.Thread(target=answer)
    thread.start()
    new = Running(broker, "new", tmp_path)
    server.run(method=method)
    thread.join()
    new.stop()

    plan = {planned.device: planned for planned in server.store.plan(Position(1, 0)) or []}
    assert asked == ["int8"]
    assert {name: one.task.returns.codec for name, one in plan.items()} == {"old": "int8", "new": "int4"}
    assert plan["old"].assignment.returns.codec == "int8"
    assert [event.device for event in server.seen(events.Warned)] == ["old"]
