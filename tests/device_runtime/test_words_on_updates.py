"""A device does not begin its next task before it knows whether its last update was used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime import agent as agents
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, deltas, tensors, topics
from fedwright.protocol.artifact import returned_shapes
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Recipe, Returns, Task, Update
from helpers.fleet import FLEET, WAIT_S, Running
from helpers.present import present
from helpers.tiny_artifact import make_artifact, start_weights

RETURNS = Returns(codec="int8")


class Server:
    """Says what the test wants to one device."""

    def __init__(self, broker: MemoryBroker, device: Running) -> None:
        self.link = broker.link("server")
        self.link.subscribe(topics.up_all(FLEET))
        self._device = device

    def say(self, body: Ack | Task) -> None:
        self.link.send(topics.down(FLEET, "a"), codec.encode(body, sender="server", boot="s"))

    def task(self, number: int) -> None:
        """A task with all it needs inside."""
        recipe = Recipe(batch=4, learning_rate=0.1, seed=number)
        refs = make_ref(artifacts.pack(make_artifact())), make_ref(tensors.save(start_weights()))
        self.say(Task(f"t{number}", self._device.boot, "run", number, *refs, recipe, RETURNS, 60.0))

    def hear(self, *kinds: type[Ack | Update]) -> Any:
        """The next message of these kinds."""
        while True:
            received = self.link.receive(WAIT_S)
            assert received is not None, "nothing came"
            body = codec.decode(received.payload).body
            if isinstance(body, kinds):
                return body


class Served(Running):
    """A device and its server."""

    def __init__(self, folder: Path) -> None:
        broker = MemoryBroker()
        super().__init__(broker, "a", folder)
        self.server = Server(broker, self)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path)
    yield running
    running.stop()


def changes(update: Update) -> dict[str, NDArray[Any]]:
    """What an update changes."""
    manifest = make_artifact().manifest
    return deltas.decode(present(present(update.tensors).inline), returned_shapes(manifest, RETURNS))


@pytest.mark.parametrize("problem", ["", "too late"], ids=["used", "not used"])
def test_the_word_on_an_update_comes_before_the_next_task(tmp_path: Path, device: Served, problem: str) -> None:
    server = device.server
    server.task(1)
    first = server.hear(Update)
    # The acknowledgement is lost, and the server goes on.
    server.task(2)
    assert server.hear(Update, Ack) == first
    server.say(Ack("t1", problem))
    assert server.hear(Update, Ack) == Ack("t2")
    second = server.hear(Update)

    calm = Served(tmp_path / "calm")
    calm.server.task(1)
    calm.server.hear(Update)
    calm.server.say(Ack("t1", problem))
    calm.server.task(2)
    calm.server.hear(Ack)
    expected = changes(calm.server.hear(Update))
    calm.stop()
    assert (second.task, changes(second).keys()) == ("t2", expected.keys())
    assert all(np.array_equal(changes(second)[name], expected[name]) for name in expected)


def test_a_server_that_never_answers_is_not_waited_for_for_ever(
    device: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = device.server
    server.task(1)
    server.hear(Update)
    monkeypatch.setattr(agents, "WORD_S", 0.0)
    server.task(2)

    assert server.hear(Ack, Update) == Ack("t2")
    assert server.hear(Update).task == "t2"
