"""An update that is larger than its task can need is turned down before it is fetched."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import codec, deltas
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.memory import MemoryBroker, MemoryLink
from fedwright.protocol.messages import Ack, Get, Here, Returns, Stats, Task, Update
from fedwright.server_runtime.fleet.upload_limits import HEADER_BYTES, most_bytes
from fedwright.server_runtime.rounds import events
from helpers.edges import RunningEdge
from helpers.fleet import FLEET, WAIT_S, Scripted, Server, agents, report
from helpers.present import present
from helpers.tiny_artifact import make_artifact, start_weights

STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def words_until(device: Scripted, kind: type) -> list[Any]:
    """All that a device is told up to the first message of a kind."""
    words: list[Any] = []
    while not words or not isinstance(words[-1], kind):
        words.append(codec.decode(present(device.link.receive(WAIT_S)).payload).body)
    return words


def send_too_much(device: Scripted) -> list[Any]:
    """Answer a task with two megabytes; what was said to that. Then take part in the closing measurement."""
    task = device.hear(Task)
    device.say(Ack(task.task))
    device.say(Update(task.task, task.round, STATS, make_ref(bytes(2_000_000), inline=False)))
    said = words_until(device, Ack)
    device.say(Update(device.hear(Task).task, 2, STATS))
    return said


def test_a_blob_over_the_limit_is_not_fetched_and_its_sender_told(tmp_path: Path) -> None:
    broker = MemoryBroker()
    server = Server(broker, tmp_path, devices=2, rounds=1, deadline_s=WAIT_S)
    greedy = Scripted(broker, "greedy")
    said: list[Any] = []

    def play() -> None:
        greedy.join()
        said.extend(send_too_much(greedy))

    player = threading.Thread(target=play, daemon=True)
    player.start()
    with agents(broker, tmp_path, "a"):
        server.run()
    player.join(WAIT_S)

    # 16 weights of at most 8 bytes each and 1 MB for their names.
    assert "its blob of 2000000 bytes is over the limit of 1000128" in said[-1].problem
    assert not any(isinstance(word, Get) for word in said)
    assert [event.device for event in server.seen(events.UpdateTaken) if event.round == 1 and not event.evaluation] == [
        "a"
    ]


class Apart:
    """The links of an edge whose devices have a broker of their own."""

    def __init__(self, host: MemoryBroker, devices: MemoryBroker) -> None:
        self._host, self._devices = host, devices

    def link(self, name: str) -> MemoryLink:
        """See MemoryBroker."""
        return (self._host if name.endswith("-up") else self._devices).link(name)


def test_an_edge_does_not_fetch_it_either_and_the_host_turns_it_down(tmp_path: Path) -> None:
    host, behind = MemoryBroker(), MemoryBroker()
    server = Server(host, tmp_path, devices=2, rounds=1, deadline_s=WAIT_S)
    greedy = Scripted(behind, "greedy")
    said: list[Any] = []

    def play() -> None:
        greedy.hear(Here)
        greedy.say(report())
        said.extend(send_too_much(greedy))

    player = threading.Thread(target=play, daemon=True)
    # A scripted device speaks in the fleet of this name, which is its edge's.
    edge = RunningEdge(Apart(host, behind), FLEET, tmp_path / "edge")
    player.start()
    with agents(host, tmp_path, "a"):
        server.run()
    player.join(WAIT_S)
    edge.stop()

    assert edge.error is None
    assert "its blob of 2000000 bytes is over the limit of 1000128" in said[-1].problem
    assert not any(isinstance(word, Get) for word in said)


@pytest.mark.parametrize("keep", [None, 0.5, 0.999], ids=["whole", "half", "nearly all"])
@pytest.mark.parametrize("kind", ["float32", "bf16", "int8"])
def test_every_form_of_an_update_is_within_the_limit(kind: Any, keep: float | None) -> None:
    rng = np.random.default_rng(3)
    change = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in start_weights().items()}

    blob = deltas.encode(change, codec=kind, keep=keep)

    assert len(blob) < most_bytes(make_artifact().manifest, Returns(weights="delta"))


def test_class_means_and_logits_count_by_what_the_task_asks_for() -> None:
    manifest = make_artifact().manifest
    alone = Returns(weights="none", logits=1000)

    # 1000 rows of 4 classes.
    assert most_bytes(manifest, alone) == HEADER_BYTES + 8 * 4000
    assert most_bytes(manifest, Returns(weights="none")) == HEADER_BYTES
