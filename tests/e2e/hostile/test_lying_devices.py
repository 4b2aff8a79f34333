"""Enrolled devices that lie, over a real broker and against the server's own process: the run ends as it should."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Ack, Board, Challenge, DataSummary, Dismiss, Report, Stats, Task, Update
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights
from fedwright.server_runtime.spec import ModelSpec
from helpers.data_files import save_points

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HONEST = ("a", "b", "c")
ROUNDS = 2
CONFIG = """
[run]
name = "night"
rounds = {rounds}
[fleet]
broker = "{broker}"
devices = 5
join_timeout_s = 120
deadline_s = 60
[model]
model = "mlp"
[method]
name = "fedavg"
"""
USUAL = DataSummary(samples=48, holdout=12, input_shape=[4], classes=2)


class Liar:
    """A device over a broker that reports what it likes and answers every training task with one update."""

    def __init__(self, url: str, device: str, *, said: DataSummary, samples: int, value: float) -> None:
        self.problems: list[str] = []
        self._boot, self._device = codec.new_id(), device
        self._said, self._samples, self._value = said, samples, value
        self._link = connect(url, client_id=device)
        self._link.subscribe(topics.down("default", device))
        self._link.subscribe(topics.shared("default"))
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
            self._say(Ack(body.task))
            self._say(self._answer(body))

    def _answer(self, task: Task) -> Update:
        stats = Stats(self._samples, 1, 0.1, 0.1, 1)
        if task.returns.weights == "none":
            return Update(task.task, task.round, stats)
        shapes = initial_weights(zoo.create(ModelSpec("mlp", (4,), 2), seed=0))
        values = {name: np.full_like(value, self._value) for name, value in shapes.items()}
        return Update(task.task, task.round, stats, make_ref(tensors.save(values)))

    def _report(self) -> None:
        board = Board("liar", "x86_64", 1, 10**9, "onnxruntime", 1)
        self._say(Report("liar", board, 10**9, self._said))

    def _say(self, body: Any) -> None:
        self._link.send(topics.up("default", self._device), codec.encode(body, sender=self._device, boot=self._boot))

    def stop(self) -> None:
        """Leave."""
        self._over.set()
        self._thread.join(10)
        self._link.close()


def test_lies_in_updates_and_reports_do_not_end_a_run(tmp_path: Path) -> None:
    with Broker() as broker, EmulatedFleet(tmp_path / "logs") as fleet:
        (tmp_path / "run.toml").write_text(CONFIG.format(broker=broker.url, rounds=ROUNDS))
        server = subprocess.Popen(
            [sys.executable, "-m", "fedwright", "server", "run", "run.toml", "--json", "result.json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        many = structs.replace(USUAL, samples=2**53, classes=1_000_000)
        liars = {
            "none": Liar(broker.url, "none", said=USUAL, samples=0, value=0.01),
            "huge": Liar(broker.url, "huge", said=USUAL, samples=48, value=3e38),
            "many": Liar(broker.url, "many", said=many, samples=2**53, value=0.01),
        }
        for seed, device in enumerate(HONEST):
            save_points(tmp_path / f"{device}.npz", seed=seed)
            data, state = f"npz:{tmp_path / device}.npz", tmp_path / "state"
            config = AgentConfig(broker=broker.url, device=device, data=data, state=state, threads=1, once=True)
            fleet.start(device, "laptop", agent_command(config))
        said = server.communicate(timeout=240)[0]
        for liar in liars.values():
            liar.stop()

    assert server.returncode == 0, said
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rounds_done"], result["complete"]) == (ROUNDS, True)
    assert [metrics["updates"] for metrics in result["metrics"]] == [3.0, 3.0]
    told = {notice["device"]: notice["text"] for notice in result["notices"] if notice["device"]}
    assert "stats.samples is 0" in told["none"]
    assert "reaches 3e+38" in told["huge"]
    assert "the run has 2 classes" in told["many"]
    assert any("stats.samples is 0" in problem for problem in liars["none"].problems)
