"""`fedwright bench chaos`: kill the server, the broker, devices and edges, cut the link; compare with a run in peace.

Everything is real: a broker, a server process that is resumed after each kill, and agent processes behind a link that
can be cut. Kills come at seeded random moments. A run counts as unharmed when no update is lost, none is counted twice
(by the books that the method keeps in its state, `chaos_server`) and the final state has the bytes of the undisturbed
run. `--methods` names those to try, each with as many kills; FedAvg when absent.
"""

import argparse
import hashlib
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fedwright.benchmarks.processes.chaos_server import BOOKS, SUFFIX
from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import RoundError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.shaping import Proxy
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder

DEVICES = ("a", "b", "c")
ROUNDS = 6
VICTIMS = ("server", "broker", "device", "link", "edge")
# Between two kills: from the middle of a start to several rounds later.
PAUSE_S = (0.2, 4.0)
CUT_S = 0.5
RUN_TIMEOUT_S = 300.0

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

[model]
model = "{model}"

[method]
name = "{method}"
{params}
[train]
epochs = 8
batch = 8

[update]
codec = "int8"

[public]
{public}
"""
# What papers mean for hundreds of rounds, for a few.
PARAMS = {
    "adapters-private": "pretrain_rounds = 2\n",
    "hyperflora": "pretrain_rounds = 2\nexchanges = 1\n",
    "pfedhn": "server_rate = 0.06\nmomentum = 0.0\nparallel = true\n",
}
PUBLIC_ROWS = 60

EDGE = """
[edge]
name = "{name}"
folder = "{folder}/edges"
[host]
broker = "{broker}"
"""


@dataclass
class ChaosOutcome:
    """What became of one run."""

    rounds: int
    digest: str
    lost: int
    twice: int
    kills: Counter[str] = field(default_factory=Counter)
    same: bool = True


def run(args: argparse.Namespace) -> dict[str, Any]:
    """As many runs as it takes for `--kills` kills; `--quick` makes six of them."""
    wanted = args.kills if args.kills is not None else 6 if args.quick else 40
    edges = args.edges or 0
    methods = args.methods or ["fedavg"]
    for method in methods:
        find(method)
    found = [(method, number, outcome) for method in methods for number, outcome in disturbed(method, wanted, edges)]
    runs = [outcome for _, _, outcome in found]
    kills = sum((outcome.kills for outcome in runs), Counter[str]())
    lost, twice = sum(outcome.lost for outcome in runs), sum(outcome.twice for outcome in runs)
    return {
        "seeds": sorted({number for _, number, _ in found}),
        "tables": {
            "kills": [{"victim": victim, "kills": kills[victim]} for victim in _victims(edges)],
            "runs": [
                {
                    "method": method,
                    "seed": seed,
                    "kills": sum(outcome.kills.values()),
                    "rounds finished": outcome.rounds,
                    "updates lost": outcome.lost,
                    "counted twice": outcome.twice,
                    "same bytes": outcome.same,
                }
                for method, seed, outcome in found
            ],
        },
        "checks": [
            _check("updates lost", lost, 0),
            _check("updates counted twice", twice, 0),
            _check("rounds finished", sum(outcome.rounds for outcome in runs), ROUNDS * len(runs)),
            _check(
                "runs that end with the bytes of the undisturbed one", sum(outcome.same for outcome in runs), len(runs)
            ),
        ],
    }


def disturbed(method: str, wanted: int, edges: int) -> list[tuple[int, ChaosOutcome]]:
    """Runs of a method with so many kills in all, by their seeds, each compared with one left in peace."""
    peace = play(kills=0, seed=0, edges=edges, method=method)
    runs: list[tuple[int, ChaosOutcome]] = []
    left = wanted
    while left > 0:
        outcome = play(kills=left, seed=len(runs) + 1, edges=edges, method=method)
        left -= sum(outcome.kills.values())
        runs.append((len(runs) + 1, replace(outcome, same=outcome.digest == peace.digest)))
    return runs


def play(*, kills: int, seed: int, rounds: int = ROUNDS, edges: int = 0, method: str = "fedavg") -> ChaosOutcome:
    """One run from start to end with up to this many kills; devices sit behind edges in turn when there are any."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = stack.enter_context(_fleet(folder, rounds, edges, method))
        made = _disturb(fleet, kills, random.Random(seed))
        fleet.finish()
        return _outcome(RunFolder(folder / "chaos"), made)


class _Fleet:
    """The processes of one run; whatever dies is started again."""

    def __init__(self, folder: Path, broker: Broker, proxy: Proxy, *, config: str, edges: int) -> None:
        self.broker = broker
        self.proxy = proxy
        self._folder = folder
        self._config = folder / "chaos.toml"
        self._config.write_text(config)
        self.edges = [f"edge-{number}" for number in range(edges)]
        self._edges = {edge: self._start_edge(edge) for edge in self.edges}
        self._devices = {device: self._start_device(device) for device in DEVICES}
        self._server = self._start_server()

    def kill_server(self) -> None:
        """SIGKILL, then resume."""
        _kill(self._server)
        self._server = self._start_server()

    def kill_edge(self, edge: str) -> None:
        """SIGKILL, then start again with the same folder."""
        _kill(self._edges[edge])
        self._edges[edge] = self._start_edge(edge)

    def kill_device(self, device: str) -> None:
        """SIGKILL, then start again with the same state folder."""
        _kill(self._devices[device])
        self._devices[device] = self._start_device(device)

    def running(self, wait_s: float) -> bool:
        """Wait; False as soon as the server has ended for good."""
        self._revive()
        try:
            self._server.wait(wait_s)
        except subprocess.TimeoutExpired:
            return True
        return self._found_no_broker()

    def finish(self) -> None:
        """Wait for the end of the run."""
        for _ in range(int(RUN_TIMEOUT_S)):
            if not self.running(1.0):
                break
        code = self._server.poll()
        if code is None:
            raise RoundError(f"the run did not end within {RUN_TIMEOUT_S:.0f} s; see {self._folder}")
        if code != 0:
            raise RoundError(f"the server ended with code {code}: {self._last_words()}")

    def close(self) -> None:
        """End every process."""
        for process in (self._server, *self._edges.values(), *self._devices.values()):
            _kill(process)

    def _revive(self) -> None:
        """Start again what ended because the broker was away when it came, as a service manager would."""
        if self._found_no_broker():
            self._server = self._start_server()
        for edge, process in self._edges.items():
            if process.poll() is not None:
                self._edges[edge] = self._start_edge(edge)
        for device, process in self._devices.items():
            if process.poll() is not None:
                self._devices[device] = self._start_device(device)

    def _found_no_broker(self) -> bool:
        return self._server.poll() not in (None, 0) and "no broker at" in self._last_words()

    def _last_words(self) -> str:
        return (self._folder / "server.out").read_text()[-500:]

    def _start_server(self) -> subprocess.Popen[bytes]:
        known = _is_recorded(RunFolder(self._folder / "chaos"))
        words = ["resume", str(self._folder / "chaos")] if known else ["run", str(self._config)]
        return self._start("server.out", ["server", *words], module="fedwright.benchmarks.processes.chaos_server")

    def _start_edge(self, edge: str) -> subprocess.Popen[bytes]:
        path = self._folder / f"{edge}.toml"
        path.write_text(EDGE.format(name=edge, folder=self._folder, broker=self.proxy.url))
        return self._start(f"{edge}.out", ["server", "edge", str(path)])

    def _start_device(self, device: str) -> subprocess.Popen[bytes]:
        words = ["--device", device, "--broker", self.proxy.url, "--data", f"npz:{_data_file(self._folder, device)}"]
        words += ["--state", str(self._folder / "state"), "--threads", "1"]
        if self.edges:
            words += ["--edge", self.edges[DEVICES.index(device) % len(self.edges)]]
        return self._start(f"{device}.out", ["device", "run", *words])

    def _start(self, log_name: str, words: list[str], *, module: str = "fedwright") -> subprocess.Popen[bytes]:
        with (self._folder / log_name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


@contextmanager
def _fleet(folder: Path, rounds: int, edges: int, method: str) -> Iterator[_Fleet]:
    with Broker() as broker:
        config = _config(folder, broker.url, rounds, method)
        address = urlsplit(broker.url)
        with Proxy(str(address.hostname), int(address.port or 0)) as proxy:
            fleet = _Fleet(folder, broker, proxy, config=config, edges=edges)
            try:
                yield fleet
            finally:
                fleet.close()


def _disturb(fleet: _Fleet, kills: int, rng: random.Random) -> Counter[str]:
    made: Counter[str] = Counter()
    while sum(made.values()) < kills and fleet.running(rng.uniform(*PAUSE_S)):
        victim = rng.choice(_victims(len(fleet.edges)))
        made[victim] += 1
        if victim == "server":
            fleet.kill_server()
        elif victim == "device":
            fleet.kill_device(rng.choice(DEVICES))
        elif victim == "edge":
            fleet.kill_edge(rng.choice(fleet.edges))
        elif victim == "broker":
            fleet.broker.kill()
            fleet.broker.restart()
        else:
            fleet.proxy.cut()
            fleet.running(CUT_S)
            fleet.proxy.mend()
    return made


def _config(folder: Path, broker: str, rounds: int, method: str) -> str:
    """A run of a method on the model it is meant for."""
    entry = find(method)
    public = f'file = "{_data_file(folder, "public", PUBLIC_ROWS)}"' if entry.needs_public else ""
    return CONFIG.format(
        rounds=rounds,
        folder=folder,
        broker=broker,
        devices=len(DEVICES),
        model=entry.model,
        method=method + SUFFIX,
        params=PARAMS.get(method, ""),
        public=public,
    )


def _victims(edges: int) -> tuple[str, ...]:
    return VICTIMS if edges else VICTIMS[:-1]


def _outcome(folder: RunFolder, kills: Counter[str]) -> ChaosOutcome:
    store = SqliteRoundStore(folder.store)
    try:
        closed = store.closed()
        planned = [planned.task.task for stage in closed for planned in store.plan(stage.position) or []]
        state = MethodState.read(BlobStore(folder.blobs).path(closed[-1].state))
        lost, twice = reckon(planned, state.record(BOOKS, list[str]))
        rounds = len({stage.position.round for stage in closed})
        return ChaosOutcome(rounds, hashlib.sha256(tensors.save(state.tensors)).hexdigest(), lost, twice, kills)
    finally:
        store.close()


def reckon(planned: Sequence[str], absorbed: Sequence[str]) -> tuple[int, int]:
    """How many tasks of closed rounds are not in the final state, and how often one is in it that was before."""
    counts = Counter(absorbed)
    return sum(not counts[task] for task in planned), sum(count - 1 for count in counts.values())


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


def _check(name: str, value: int, target: int) -> dict[str, Any]:
    return {"name": name, "value": value, "target": target, "holds": value == target}
