"""Devices over a real broker that say what no honest one does."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link import connect
from fedwright.protocol.messages import (
    Ack,
    Board,
    Challenge,
    Chunk,
    DataSummary,
    Dismiss,
    Get,
    Refusal,
    Report,
    Stats,
    Task,
    Update,
)
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights
from fedwright.server_runtime.rounds.audit import AUDIT, read_audit
from fedwright.server_runtime.spec import ModelSpec

Tensors = dict[str, Any]
USUAL = DataSummary(samples=48, holdout=12, input_shape=[4], classes=2)
BLOBS, PIECE_BYTES = 9, 1024


def change(value: Any) -> Tensors:
    """A change of the model of these tests that has one value everywhere, in the value's own type."""
    shapes = initial_weights(zoo.create(ModelSpec("mlp", (4,), 2), seed=0))
    return {name: np.full(tensor.shape, value) for name, tensor in shapes.items()}


class Liar:
    """A device that reports what it likes and answers every training task with one update.

    fleet: the edge that it goes to, if it does.
    """

    free_bytes = 10**9

    def __init__(
        self,
        url: str,
        device: str,
        *,
        said: DataSummary = USUAL,
        samples: int = 48,
        value: Any = None,
        fleet: str = "default",
    ) -> None:
        self.problems: list[str] = []
        self.began = threading.Event()
        self._boot, self._device = codec.new_id(), device
        self._said, self._samples, self._value = said, samples, np.float32(0.01) if value is None else value
        self._link = connect(url, client_id=device)
        self._fleet = fleet
        self._link.subscribe(topics.down(fleet, device))
        self._link.subscribe(topics.shared(fleet))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        self._report()
        while not self._over.is_set():
            received = self._link.receive(0.5)
            if received is not None:
                self._hear(codec.decode(received.payload).body)

    def _hear(self, body: Any) -> None:
        if isinstance(body, Challenge):
            self._report()
        elif isinstance(body, Ack):
            self.problems += [body.problem] if body.problem else []
        elif isinstance(body, Dismiss):
            self._over.set()
        elif isinstance(body, Task):
            self.began.set()
            self.say(Ack(body.task))
            self._answer(body)

    def _answer(self, task: Task) -> None:
        trains = task.returns.weights != "none"
        ref = make_ref(tensors.save(change(self._value))) if trains else None
        self.say(Update(task.task, task.round, self._stats(), ref))

    def _stats(self) -> Stats:
        return Stats(self._samples, 1, 0.1, 0.1, 1, bytes_up=self._samples, bytes_down=self._samples)

    def _report(self) -> None:
        board = Board("liar", "x86_64", 1, 10**9, "onnxruntime", 1)
        self.say(Report("liar", board, self.free_bytes, self._said))

    def say(self, body: Any) -> None:
        """Send a message under the name of this device."""
        self._link.send(topics.up(self._fleet, self._device), codec.encode(body, sender=self._device, boot=self._boot))

    def stop(self) -> None:
        """Leave."""
        self._over.set()
        self._thread.join(10)
        self._link.close()


class SlowLiar(Liar):
    """Announces nine blobs for its first task and gives one piece of each, until `give_way`; refuses all others."""

    def __init__(self, url: str, device: str) -> None:
        self._pieces = {}
        for number in range(BLOBS):
            data = tensors.save(change(np.float32(number)))
            self._pieces[make_ref(data).sha256] = data[:PIECE_BYTES]
        self._first: Task | None = None
        self.asked: set[str] = set()
        super().__init__(url, device)

    def _answer(self, task: Task) -> None:
        if task.returns.weights == "none":
            super()._answer(task)
        elif self._first is None or self._first.task == task.task:
            self._first = task
            for number in range(BLOBS):
                ref = make_ref(tensors.save(change(np.float32(number))), chunk_bytes=PIECE_BYTES, inline=False)
                self.say(Update(task.task, task.round, self._stats(), structs.replace(ref, inline=None)))
        else:
            self.say(Refusal(task.task, "failed", "not today"))

    def _hear(self, body: Any) -> None:
        if isinstance(body, Get) and body.sha256 in self._pieces and body.sha256 not in self.asked:
            self.asked.add(body.sha256)
            self.say(Chunk(body.sha256, 0, memoryview(self._pieces[body.sha256])))
        super()._hear(body)

    def give_way(self) -> None:
        """Refuse the first task, so that its round can end."""
        if self._first is not None:
            self.say(Refusal(self._first.task, "failed", "not today"))


def taken(folder: Path, number: int) -> set[str]:
    """Devices whose updates of a round the audit log of a run holds as accepted."""
    if not (folder / AUDIT).exists():
        return set()
    lines = [line for line in read_audit(folder) if line["what"] == "accepted" and not line["evaluation"]]
    return {line["device"] for line in lines if line["round"] == number}
