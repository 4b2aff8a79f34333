"""The processes of one run of `bench chaos` or `bench soak`; whatever dies is started again."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np

from fedwright.benchmarks.harness.faulty_wire import FaultyWire
from fedwright.benchmarks.processes.chaos_moments import FOLDER, NAME, Watched
from fedwright.benchmarks.processes.chaos_server import SUFFIX
from fedwright.device_runtime.store.journal import MAX_ATTEMPTS, read_entry
from fedwright.protocol.errors import RoundError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.shaping import Proxy
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder

DEVICES = ("a", "b", "c")
PUBLIC_ROWS = 60
RUN_TIMEOUT_S = 300.0
# What a server says when it ends for something outside of it, after which a service manager starts it again.
NOT_ITS_FAULT = ("no broker at", "free some space")
# Of the disk that can be filled.
DISK = "192m"
BLOCK_BYTES = 1024 * 1024
# A message in so many is mistreated on its way.
FAULT_EVERY = 15

CONFIG = """
[run]
name = "chaos"
seed = 5
rounds = {rounds}
folder = "{folder}"

[fleet]
broker = "{broker}"
devices = {devices}
deadline_s = 120
chunk_kib = 8

[model]
model = "{model}"

[method]
name = "{method}"
{params}
[train]
epochs = {epochs}
batch = 8

[update]
{update}

[public]
{public}
"""
# What papers mean for hundreds of rounds, for a few.
PARAMS = {
    "adapters-private": "pretrain_rounds = 2\n",
    "hyperflora": "pretrain_rounds = 2\nexchanges = 1\n",
    "pfedhn": "server_rate = 0.06\nmomentum = 0.0\nparallel = true\n",
}

EDGE = """
[edge]
name = "{name}"
folder = "{folder}/edges"
[host]
broker = "{broker}"
"""


class Plan(msgspec.Struct, frozen=True):
    """What is run: a method for so many rounds, devices behind edges in turn when there are any.

    faulty: messages are mistreated on their way, by this seed. watched: processes can be made to wait, and the method
    keeps books; else they are those of any run. secure: changes are seen in sums only.
    """

    method: str = "fedavg"
    rounds: int = 6
    edges: int = 0
    faulty: int | None = None
    epochs: int = 8
    watched: bool = True
    secure: bool = False


class ChaosFleet:
    """A broker, a server and its devices with what may be done to them."""

    def __init__(self, folder: Path, plan: Plan, broker: Broker, proxy: Proxy) -> None:
        self.broker = broker
        self.proxy = proxy
        self.run_folder = RunFolder(folder / "disk" / "chaos")
        self._folder = folder
        self._plan = plan
        self._config = folder / "chaos.toml"
        self._config.write_text(_config(folder, broker.url, plan))
        self.edges = [f"edge-{number}" for number in range(plan.edges)]
        self._edges = {edge: self._start_edge(edge) for edge in self.edges}
        self._devices = {device: self._start_device(device) for device in DEVICES}
        self._server = self._start_server()

    def processes(self) -> dict[str, int]:
        """The process id of each process by its name."""
        found = {
            "server": self._server,
            **self._edges,
            **{f"device {name}": one for name, one in self._devices.items()},
        }
        return {"broker": self.broker.pid, **{name: process.pid for name, process in found.items()}}

    def watched(self, name: str) -> Watched:
        """The moments of the server or of a device."""
        return Watched(self._folder, name)

    def kill_server(self) -> None:
        """SIGKILL, then resume."""
        _kill(self._server)
        self._server = self._start_server()

    def kill_edge(self, edge: str) -> None:
        """SIGKILL, then start again with the same folder."""
        _kill(self._edges[edge])
        self._edges[edge] = self._start_edge(edge)

    def kill_device(self, device: str) -> bool:
        """SIGKILL, then start again with the same state; False when a device would rightly refuse its task after it.

        A task that was begun twice and never came to an end is not begun a third time.
        """
        process = self._devices[device]
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            entry = read_entry(self._folder / "state" / (self._edge_of(device) or "default") / device)
            if entry is not None and entry.answer is None and entry.attempts >= MAX_ATTEMPTS:
                process.send_signal(signal.SIGCONT)
                return False
        _kill(process)
        self._devices[device] = self._start_device(device)
        return True

    def kill_broker(self, away_s: float) -> None:
        """SIGKILL, then start again after a while."""
        self.broker.kill()
        time.sleep(away_s)
        self.broker.restart()

    def cut_link(self, away_s: float) -> None:
        """Break all connections of devices, and let them come back after a while."""
        self.proxy.cut()
        time.sleep(away_s)
        self.proxy.mend()

    def fill_disk(self, rng: random.Random) -> bool:
        """Leave no byte free where the server writes, for a while; False when there is no such disk here."""
        disk = self._folder / "disk"
        if not os.path.ismount(disk):
            return False
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (BLOCK_BYTES, 4096, 1):
                _write_all(file.fileno(), bytes(size))
        with suppress(subprocess.TimeoutExpired):
            self._server.wait(rng.uniform(0.2, 1.5))
        filler.unlink()
        return True

    def running(self, wait_s: float) -> bool:
        """Wait; False as soon as the server has ended for good."""
        self._revive()
        try:
            self._server.wait(wait_s)
        except subprocess.TimeoutExpired:
            return True
        return self._ended_for_another()

    def finish(self) -> None:
        """Wait for the end of the run; RoundError when it does not come or is not a good one."""
        until_s = time.monotonic() + RUN_TIMEOUT_S
        while self.running(0.5):
            if time.monotonic() > until_s:
                raise RoundError(f"the run did not end within {RUN_TIMEOUT_S:.0f} s: {self._last_words()}")
        if code := self._server.poll():
            raise RoundError(f"the server ended with code {code}: {self._last_words()}")

    def keep_logs(self, place: Path) -> None:
        """Copy what the processes said and what the server has on disk."""
        shutil.copytree(self._folder, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("filler", "blobs"))

    def close(self) -> None:
        """End every process."""
        for process in (self._server, *self._edges.values(), *self._devices.values()):
            _kill(process)

    def _revive(self) -> None:
        """Start again what ended because the broker was away or the disk full, as a service manager would."""
        if self._ended_for_another():
            self._server = self._start_server()
        for edge, process in self._edges.items():
            if process.poll() is not None:
                self._edges[edge] = self._start_edge(edge)
        for device, process in self._devices.items():
            if process.poll() is not None:
                self._devices[device] = self._start_device(device)

    def _ended_for_another(self) -> bool:
        return self._server.poll() not in (None, 0) and any(why in self._last_words() for why in NOT_ITS_FAULT)

    def _last_words(self) -> str:
        return (self._folder / "server.out").read_text()[-700:]

    def _start_server(self) -> subprocess.Popen[bytes]:
        known = _is_recorded(self.run_folder)
        words = ["resume", str(self.run_folder.path)] if known else ["run", str(self._config)]
        return self._start("server", ["server", *words], module=self._module("server"))

    def _start_edge(self, edge: str) -> subprocess.Popen[bytes]:
        path = self._folder / f"{edge}.toml"
        path.write_text(EDGE.format(name=edge, folder=self._folder, broker=self.proxy.url))
        return self._start(edge, ["server", "edge", str(path)])

    def _start_device(self, device: str) -> subprocess.Popen[bytes]:
        words = ["--device", device, "--broker", self.proxy.url, "--data", f"npz:{_data_file(self._folder, device)}"]
        words += ["--state", str(self._folder / "state"), "--threads", "1"]
        if edge := self._edge_of(device):
            words += ["--edge", edge]
        return self._start(device, ["device", "run", *words], module=self._module("device"))

    def _module(self, side: str) -> str:
        return f"fedwright.benchmarks.processes.chaos_{side}" if self._plan.watched else "fedwright"

    def _edge_of(self, device: str) -> str | None:
        return self.edges[DEVICES.index(device) % len(self.edges)] if self.edges else None

    def _start(self, name: str, words: list[str], *, module: str = "fedwright") -> subprocess.Popen[bytes]:
        self.watched(name).forget()
        with (self._folder / f"{name}.out").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, FOLDER: str(self._folder), NAME: name, "OMP_NUM_THREADS": "1"},
            )


@contextmanager
def chaos_fleet(folder: Path, plan: Plan) -> Iterator[ChaosFleet]:
    """A fleet that runs; its server writes to a small disk of its own where one can be mounted."""
    with _small_disk(folder / "disk"), Broker() as broker:
        address = urlsplit(broker.url)
        target = str(address.hostname), int(address.port or 0)
        # Only mosquitto speaks the MQTT 5 that the faulty wire reads.
        faulty = plan.faulty is not None and broker.kind == "mosquitto"
        wire = FaultyWire(*target, seed=plan.faulty or 0, every=FAULT_EVERY) if faulty else Proxy(*target)
        with wire as proxy:
            fleet = ChaosFleet(folder, plan, broker, proxy)
            try:
                yield fleet
            finally:
                fleet.close()


@contextmanager
def _small_disk(place: Path) -> Iterator[None]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


def _write_all(descriptor: int, block: bytes) -> None:
    """Write until no such block fits any more."""
    try:
        while os.write(descriptor, block) == len(block):
            pass
    except OSError:
        return


def _config(folder: Path, broker: str, plan: Plan) -> str:
    """A run of a method on the model it is meant for."""
    entry = find(plan.method)
    public = f'file = "{_data_file(folder, "public", PUBLIC_ROWS)}"' if entry.needs_public else ""
    return CONFIG.format(
        rounds=plan.rounds,
        folder=folder / "disk",
        broker=broker,
        devices=len(DEVICES),
        model=entry.model,
        method=plan.method + (SUFFIX if plan.watched else ""),
        epochs=plan.epochs,
        update="secure = true" if plan.secure else 'codec = "int8"',
        params=PARAMS.get(plan.method, ""),
        public=public,
    )


def _is_recorded(folder: RunFolder) -> bool:
    """Whether the server got as far as making the run durable, so that it can be resumed."""
    if not folder.store.exists():
        return False
    store = SqliteRoundStore(folder.store)
    try:
        return store.run() is not None
    finally:
        store.close()


def _data_file(folder: Path, device: str, rows: int = 150) -> Path:
    """A small data set of its own for each device: bright rows tell the class."""
    path = folder / f"{device}.npz"
    if not path.exists():
        rng = np.random.default_rng(list(device.encode()))
        y = rng.integers(0, 4, rows)
        x = rng.normal(size=(rows, 1, 8, 8)).astype(np.float32)
        x[np.arange(rows), 0, 2 * y] += 2
        np.savez(path, x=x, y=y, classes=4)
    return path


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
