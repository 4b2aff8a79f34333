"""`fedwright device run` in a process of its own, and a server beside it that says what a test wants."""

import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link import Link, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Ack, Challenge, Recipe, Refusal, Report, Returns, Task, Update
from helpers.fleet import make_data
from helpers.tiny_artifact import make_artifact, start_weights

WAIT_S = 120.0


class RealDevice:
    """The agent of device `a`.

    before: words of a shell that come first. further: options of the command. link: the server's own, where it has a
    certificate; sign: what it signs its orders with.
    """

    def __init__(
        self,
        broker: Broker,
        folder: Path,
        *,
        before: str = "",
        further: tuple[str, ...] = (),
        link: Link | None = None,
        sign: codec.Sign | None = None,
    ) -> None:
        data = make_data("a")
        np.savez(folder / "data.npz", x=data.x, y=data.y)
        words = ["device", "run", "--device", "a", "--broker", broker.url, "--data", f"npz:{folder / 'data.npz'}"]
        words += ["--state", str(folder / "state"), "--threads", "1", *further]
        command = shlex.join([sys.executable, "-m", "fedwright", *words])
        self._command = ["sh", "-c", f"{before} exec {command}"]
        self._log = folder / "device.log"
        self._link = link or connect(broker.url, client_id="server")
        self._link.subscribe(topics.up_all("default"))
        self._sign = sign
        self._boot = ""
        self.order = codec.Order(1, 0)
        self.begin_life()

    def begin_life(self) -> None:
        """Start the agent and hear its first report."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        known = self._boot
        while self._boot == known:
            self.hear(Report)

    @property
    def boot(self) -> str:
        """The id of the agent's life."""
        return self._boot

    @property
    def log(self) -> str:
        """What the agent has said."""
        return self._log.read_text()

    def say(self, body: Any) -> bytes:
        """Send an order in its turn; returns its bytes."""
        self.order = self.order._replace(sequence=self.order.sequence + 1)
        payload = codec.encode(body, sender="server", boot="s", sign=self._sign, order=self.order)
        self.send(payload)
        return payload

    def send(self, payload: bytes) -> None:
        """Send any bytes on the topic of orders."""
        self._link.send(topics.down("default", "a"), payload)

    def give(self, name: str, artifact: Any) -> bytes:
        """Send a task as the server of the run would; returns its bytes."""
        recipe = Recipe(batch=4, learning_rate=0.1, seed=1)
        refs = make_ref(artifacts.pack(artifact)), make_ref(tensors.save(start_weights()))
        return self.say(Task(name, self._boot, "run", 1, *refs, recipe, Returns(), 600.0))

    def hear(self, *kinds: Any) -> Any:
        """The next message of these kinds."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            received = self._link.receive(1.0)
            envelope = None if received is None else codec.decode(received.payload)
            if envelope is not None and isinstance(envelope.body, kinds):
                self._boot = envelope.boot if isinstance(envelope.body, Report) else self._boot
                return envelope.body
        raise AssertionError(f"no {kinds} came; {self.log[-1000:]}")

    def answers(self) -> None:
        """See that the agent answers while it works."""
        self.say(Challenge())
        self.hear(Report)

    @property
    def trainer(self) -> int:
        """The process that trains."""
        (child,) = psutil.Process(self.process.pid).children()
        return int(child.pid)

    def does_an_honest_task(self) -> None:
        """What came before has done no harm."""
        name = codec.new_id()
        self.give(name, make_artifact())
        self.did(name)

    def did(self, name: str) -> None:
        """Wait for the update of a task, and acknowledge it."""
        while (answer := self.hear(Update, Refusal)).task != name:
            pass
        assert isinstance(answer, Update), answer
        self.say(Ack(name))

    def end(self) -> None:
        """End the agent whatever it does."""
        self.process.kill()
        self.process.wait()
        self._link.close()
