"""Fedwright on the same task: the same commands that a user types, each in a process of its own."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fedwright.benchmarks.peers import trees
from fedwright.benchmarks.peers.relay import relay_to
from fedwright.benchmarks.peers.scene import SEED, SPEC, PeerResult, Scene
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.broker import Broker

WAIT_S = 120.0
POLL_S = 0.01
UPDATES = re.compile(r"round (\d+)/\d+ took .*?, (\d+) updates")

CONFIG = """
[run]
name = "run"
folder = {folder}
seed = {seed}
rounds = {rounds}

[fleet]
broker = {broker}
devices = {devices}

[model]
model = {model}

[method]
name = "fedavg"

[train]
epochs = {epochs}
batch = {batch}
learning_rate = {learning_rate}

[update]
evaluate = false
{update}
"""


@dataclass
class Fleet:
    """A broker, the server and its devices; use it in a `with` block, which ends all that it started."""

    scene: Scene
    label: str
    update: str = ""
    devices: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    server: "subprocess.Popen[bytes] | None" = None
    _started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.scene.folder / self.label
        self.folder.mkdir()
        self.log = self.folder / "server.log"

    @contextmanager
    def open(self) -> Iterator["Fleet"]:
        """Start the broker; everything has ended afterwards."""
        with Broker() as broker:
            self.url = broker.url
            try:
                yield self
            finally:
                for process in self._started:
                    trees.kill(process)

    def start_server(self) -> None:
        """Start the run, or go on with it."""
        config = self.folder / "run.toml"
        again = config.exists()
        config.write_text(self._config())
        words = ["resume", str(self.folder / "run")] if again else ["run", str(config)]
        self.server = self._start(["server", *words], self.log)

    def start_device(self, device: str, url: str) -> None:
        """Start a device, or start it again with the state that an earlier one left."""
        command = ["device", "run", "--device", device, "--data", f"npz:{self.scene.data(device)}", "--quiet", "--once"]
        # As the peers' devices run, which do not step back.
        command += ["--broker", url, "--state", str(self.folder / "state"), "--threads", "1", "--nice", "0"]
        self.devices[device] = self._start(command, self.folder / f"{device}.log")

    def wait(self, number: int) -> tuple[float, int]:
        """When a round ended, and how many updates it had."""
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s:
            for found in UPDATES.finditer(self.log.read_text() if self.log.exists() else ""):
                if int(found[1]) == number:
                    return time.time(), int(found[2])
            time.sleep(POLL_S)
        raise ConfigError(f"round {number} did not end within {WAIT_S:.0f} s; the server said: {self._last_words()}")

    def accuracy(self) -> float:
        """Share of the held-out images that the exported model gets right, once the server has ended."""
        import onnxruntime

        assert self.server is not None
        self.server.wait(WAIT_S)
        session = onnxruntime.InferenceSession(str(self.folder / "run" / "model.onnx"))
        holdout = np.load(self.scene.holdout)
        logits = session.run(None, {session.get_inputs()[0].name: holdout["x"]})[0]
        return float((logits.argmax(axis=1) == holdout["y"]).mean())

    def _start(self, words: list[str], log: Path) -> "subprocess.Popen[bytes]":
        process = trees.start([sys.executable, "-m", "fedwright", *words], log=log)
        self._started.append(process)
        return process

    def _config(self) -> str:
        scene = self.scene
        values: dict[str, Any] = {"folder": str(self.folder), "broker": self.url, "model": SPEC.model}
        values = {name: json.dumps(value) for name, value in values.items()}
        return CONFIG.format(
            **values,
            seed=SEED,
            rounds=scene.rounds,
            devices=scene.devices,
            epochs=scene.epochs,
            batch=scene.batch,
            learning_rate=scene.learning_rate,
            update=self.update,
        )

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "nothing"


def measure(scene: Scene, label: str, *, update: str = "") -> PeerResult:
    """One run from cold to its end."""
    with Fleet(scene, label, update).open() as fleet:
        began_s = time.time()
        fleet.start_server()
        with relay_to(urlsplit(fleet.url).port or 0) as relay:
            for device in scene.names:
                fleet.start_device(device, f"mqtt://127.0.0.1:{relay.port}")
            roots = [process.pid for process in fleet.devices.values()]
            with trees.MemoryWatch(roots) as memory:
                marks = [fleet.wait(1)[0]]
                cpu_s, before = sum(map(trees.cpu_s, roots)), relay.counts()
                marks += [fleet.wait(number)[0] for number in range(2, scene.rounds)]
                # Before the last round: after it the devices measure the model once more and leave.
                used_s, counts = sum(map(trees.cpu_s, roots)) - cpu_s, relay.counts()
                marks.append(fleet.wait(scene.rounds)[0])
                accuracy = fleet.accuracy()
    each = scene.devices * (scene.rounds - 2)
    return PeerResult(
        marks_s=[mark - began_s for mark in marks],
        device_cpu_s=used_s / each,
        device_rss_mb=max(memory.peaks.values()) / 1e6,
        up_mb=(counts[0] - before[0]) / each / 1e6,
        down_mb=(counts[1] - before[1]) / each / 1e6,
        accuracy=accuracy,
    )


def survive_device(scene: Scene) -> str:
    """What happens to a round when a device dies in it and comes back at once."""
    with Fleet(scene, "device-dies").open() as fleet:
        fleet.start_server()
        for device in scene.names:
            fleet.start_device(device, fleet.url)
        began_s, _ = fleet.wait(1)
        trees.kill(fleet.devices["d0"])
        fleet.start_device("d0", fleet.url)
        ended_s, updates = fleet.wait(2)
    return f"round 2 took {ended_s - began_s:.1f} s, {updates} of {scene.devices} updates counted"


def survive_server(scene: Scene) -> str:
    """What is left of a run when the server dies and is told to go on."""
    with Fleet(scene, "server-dies").open() as fleet:
        fleet.start_server()
        for device in scene.names:
            fleet.start_device(device, fleet.url)
        fleet.wait(1)
        assert fleet.server is not None
        trees.kill(fleet.server)
        began_s = time.time()
        fleet.start_server()
        ended_s, updates = fleet.wait(2)
    return f"round 2 ended {ended_s - began_s:.1f} s after the kill, {updates} of {scene.devices} updates counted"
