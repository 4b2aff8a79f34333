"""Flower, in an environment of its own: SuperLink, SuperNodes and the app, started and stopped by this module alone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from shutil import copyfile

from fedwright.benchmarks.peers import trees
from fedwright.benchmarks.peers.relay import relay_to
from fedwright.benchmarks.peers.scene import PeerResult, Scene, free_port
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.steps import counted
from fedwright.simulation.datasets.files import cache_folder

# The newest of these that the package index can give with all it needs.
WANTED = "flwr>=1.40,<1.43"
WAIT_S = 600.0
LOST_S = 90.0
POLL_S = 0.05

PROJECT = """
[project]
name = "peer"
version = "1.0.0"
description = "FedAvg of a LeNet, to be measured"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "measured"

[tool.flwr.app.components]
serverapp = "app.server_app:app"
clientapp = "app.client_app:app"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Mark:
    """The end of one round, as the app wrote it down."""

    number: int
    time_s: float
    accuracy: float


def environment() -> Path:
    """Python of an environment that has Flower and torch, made once in the per-user cache; ConfigError if it cannot."""
    torch = f"torch=={metadata.version('torch').partition('+')[0]}"
    folder = cache_folder() / "peers" / f"flower-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == [WANTED, torch]:
        return python
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    install_each(python, WANTED, torch)
    done.write_text(json.dumps([WANTED, torch]))
    return python


def install_each(python: Path, *wanted: str) -> None:
    """Install packages with all they need, one by one, so that a person sees how many are left."""
    install = (str(python), "-m", "pip", "install", "--quiet", "--no-input")
    plan = json.loads(_run(*install, "--dry-run", "--report", "-", *wanted))
    packages = [f"{one['metadata']['name']}=={one['metadata']['version']}" for one in plan["install"]]
    for package in counted(packages, "installing Flower"):
        _run(*install, "--no-deps", package)


def _run(*command: str) -> str:
    """What a command printed; ConfigError if it failed."""
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        said = (made.stderr or made.stdout).strip().splitlines() or ["nothing"]
        raise ConfigError(f"Flower cannot be installed here, so it is not measured; pip said: {said[-1]}")
    return made.stdout


def version(python: Path) -> str:
    """The version of Flower in an environment."""
    command = [str(python), "-c", "import importlib.metadata; print(importlib.metadata.version('flwr'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Federation:
    """A SuperLink and its SuperNodes; use it in a `with` block, which ends all that it started.

    durable: the SuperLink keeps a database. It does not by default, and at ten devices on two cores the database was
    seen to be locked, which cost a message and the round its time limit.
    """

    scene: Scene
    python: Path
    durable: bool = False
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    nodes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    link: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.folder = self.scene.folder / "flower"
        self.marks_file = self.folder / "marks.txt"
        self.port = free_port()
        self.env = {"FLWR_HOME": str(self.folder / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
        # SuperLink and SuperNode start their helpers by name.
        self.env["PATH"] = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        self._write()

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            trees.kill(process)

    def start_link(self) -> None:
        """Start the SuperLink, or start it again on the database that an earlier one left."""
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        keeps = ["--database", str(self.folder / "state.db")] if self.durable else []
        command = ["flower-superlink", "--insecure", *address, *keeps, "--disable-runtime-dependency-installation"]
        self.link = self._start(command, "superlink")

    def start_node(self, device: str, superlink: int) -> None:
        """Start the SuperNode of a device; it speaks with the SuperLink through the given port."""
        address = ["--superlink", f"127.0.0.1:{superlink}", "--port", str(free_port())]
        config = f'data="{self.scene.data(device)}"'
        self.nodes[device] = self._start(["flower-supernode", "--insecure", *address, "--node-config", config], device)

    def run_app(self) -> None:
        """Hand the app to the SuperLink; tried again while it is not up yet."""
        command = [str(self.python.parent / "flwr"), "run", str(self.folder), "here"]
        ends_s = time.monotonic() + WAIT_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.env})
            if done.returncode == 0:
                return
            if time.monotonic() > ends_s:
                raise ConfigError(f"Flower did not take its app: {(done.stderr or done.stdout).strip()[-300:]}")

    def wait(self, number: int, *, timeout_s: float = WAIT_S) -> Mark | None:
        """The mark of a round, or None when it does not come in time."""
        ends_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_s:
            found = [mark for mark in self.marks() if mark.number >= number]
            if found:
                return found[0]
            time.sleep(POLL_S)
        return None

    def marks(self) -> list[Mark]:
        """All rounds that ended so far."""
        lines = self.marks_file.read_text().splitlines() if self.marks_file.exists() else []
        words = [line.split() for line in lines]
        return [Mark(int(number), float(ended), float(accuracy)) for number, ended, accuracy in words]

    def _start(self, command: Sequence[str], log: str) -> "subprocess.Popen[bytes]":
        words = [str(self.python.parent / command[0]), *command[1:]]
        process = trees.start(words, log=self.folder / f"{log}.log", env=self.env)
        self.processes.append(process)
        return process

    def _write(self) -> None:
        (self.folder / "app").mkdir(parents=True)
        (self.folder / "home").mkdir()
        for file in ("__init__", "model", "client_app", "server_app"):
            with resources.as_file(resources.files(f"{__package__}.flower_app") / f"{file}.py") as path:
                copyfile(path, self.folder / "app" / f"{file}.py")
        scene = self.scene
        settings: dict[str, object] = {"devices": scene.devices, "rounds": scene.rounds, "batch": scene.batch}
        settings |= {"learning-rate": scene.learning_rate, "marks": str(self.marks_file)}
        settings |= {"initial": str(scene.initial), "holdout": str(scene.holdout)}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (self.folder / "pyproject.toml").write_text(PROJECT + "\n".join(lines) + "\n")
        home = (
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (self.folder / "home" / "config.toml").write_text(home)


def measure(scene: Scene, python: Path) -> PeerResult:
    """One run of Flower from cold to its end."""
    with Federation(scene, python) as federation:
        began_s = time.time()
        federation.start_link()
        with relay_to(federation.port) as relay:
            for device in scene.names:
                federation.start_node(device, relay.port)
            federation.run_app()
            roots = [node.pid for node in federation.nodes.values()]
            with trees.MemoryWatch(roots) as memory:
                _need(federation.wait(1), 1)
                cpu_s, bytes_before = _cpu_s(roots), relay.counts()
                last = _need(federation.wait(scene.rounds), scene.rounds)
            used_s, counts = _cpu_s(roots) - cpu_s, relay.counts()
            marks = federation.marks()
    each = scene.devices * (scene.rounds - 1)
    return PeerResult(
        marks_s=[mark.time_s - began_s for mark in marks if mark.number],
        device_cpu_s=used_s / each,
        device_rss_mb=max(memory.peaks.values()) / 1e6,
        up_mb=(counts[0] - bytes_before[0]) / each / 1e6,
        down_mb=(counts[1] - bytes_before[1]) / each / 1e6,
        accuracy=last.accuracy,
    )


def survive_device(scene: Scene, python: Path) -> str:
    """What happens to a round when a device dies in it and comes back at once."""
    with Federation(scene, python) as federation:
        federation.start_link()
        for device in scene.names:
            federation.start_node(device, federation.port)
        federation.run_app()
        first = _need(federation.wait(1), 1)
        _wait_for_app(federation.nodes["d0"])
        trees.kill(federation.nodes["d0"])
        federation.start_node("d0", federation.port)
        second = federation.wait(2, timeout_s=WAIT_S)
        if second is None:
            return f"round 2 did not end within {WAIT_S:.0f} s"
        return f"round 2 took {second.time_s - first.time_s:.0f} s"


def survive_server(scene: Scene, python: Path) -> str:
    """What is left of a run when the server dies and comes back with its database."""
    with Federation(scene, python, durable=True) as federation:
        federation.start_link()
        for device in scene.names:
            federation.start_node(device, federation.port)
        federation.run_app()
        _need(federation.wait(1), 1)
        assert federation.link is not None
        trees.kill(federation.link)
        federation.start_link()
        done = federation.wait(2, timeout_s=LOST_S)
    return "the run went on" if done is not None else f"no round ended within {LOST_S:.0f} s: the run is lost"


def _wait_for_app(node: "subprocess.Popen[bytes]") -> None:
    """Until the device is at work on its task: its app is a process of its own."""
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s:
        if any("flwr-clientapp" in trees.command_of(pid) for pid in trees.below(node.pid)):
            return
        time.sleep(POLL_S)


def _need(mark: Mark | None, number: int) -> Mark:
    if mark is None:
        raise ConfigError(f"Flower did not end round {number} within {WAIT_S:.0f} s; is this machine busy?")
    return mark


def _cpu_s(roots: Sequence[int]) -> float:
    return sum(trees.cpu_s(root) for root in roots)
