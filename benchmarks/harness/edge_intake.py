"""What rounds cost a host, edges and the broker when the devices do nothing: through 1, 4 and 16 edges, and directly.

Real processes over mosquitto: a host, edges behind one config that stand for their devices, and devices that speak the
real protocol over connections of their own and train nothing (`processes/idle_devices.py`).
"""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedwright.benchmarks.harness.suite import check
from fedwright.benchmarks.suites.growth import exponent
from fedwright.protocol.errors import RoundError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.rendezvous import shard_names
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.run_folder.folder import folder_of
from fedwright.server_runtime.run_folder.rounds import open_rounds

# The first round, in which the graph is built and fetched, does not count.
ROUNDS = 4
PATIENCE_S = 600.0
MOST_EXPONENT = 1.05
# Between a quarter of the devices and all of them, behind the same edges.
MOST_GROWTH = 1.25
EDGE_COMMAND = ("server", "edge", "edge.toml", "--shard")
EDGE = """
[edge]
name = "site"
folder = "edges"
shards = {edges}
[host]
broker = "{broker}"
fleet = "idle"
[devices]
least = {least}
"""
HOST = """
[run]
name = "idle"
folder = "runs"
rounds = {rounds}
[fleet]
name = "idle"
broker = "{broker}"
devices = {devices}
join_timeout_s = 600
deadline_s = 600
[model]
model = "mlp"
[update]
evaluate = false
[export]
global_model = false
[method]
name = "fedavg"
"""


@dataclass(frozen=True)
class Case:
    """So many devices behind so many edges; without edges the host knows each of them."""

    devices: int
    edges: int


def intake(*, quick: bool) -> dict[str, Any]:
    """Seconds, CPU and memory of a round by devices and edges, and how they grow."""
    most, direct, edges = (400, 100, (1, 4)) if quick else (10_000, 1000, (1, 4, 16))
    middle = edges[1]
    fleets = [Case(most // 4, middle), Case(most // 2, middle)]
    cases = [Case(direct // 2, 0), Case(direct, 0), *fleets, *(Case(most, number) for number in edges)]
    rows = [measure(case) for case in cases]
    grown = [row for row in rows if row["edges"] == middle]
    name = "edges' and broker's CPU, exponent in devices"
    slope = exponent([row["devices"] for row in grown], [row["edges_cpu_s"] + row["broker_cpu_s"] for row in grown])
    host = grown[-1]["host_cpu_s"] / grown[0]["host_cpu_s"]
    what = f"host's CPU per round, {most} of {most // 4} devices behind {middle} edges"
    note = (
        f"devices of one process share a folder and a processor, each has its own connection; CPU per round, middle of "
        f"{ROUNDS - 1}; direct: every device is the host's own"
    )
    checks = [
        check(name, round(slope, 2), f"<= {MOST_EXPONENT}", holds=slope <= MOST_EXPONENT),
        check(what, round(host, 2), f"<= {MOST_GROWTH}", holds=host <= MOST_GROWTH),
    ]
    return {"tables": {"idle rounds by devices and edges": rows}, "checks": checks, "notes": [note]}


def measure(case: Case) -> dict[str, Any]:
    """One fleet through some rounds."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(Broker(kind="mosquitto"))
        names = shard_names("site", case.edges) if case.edges else ["idle"]
        # Rendezvous gives none of them much less than its share.
        least = case.devices * 7 // 10 // max(1, case.edges)
        (place / "edge.toml").write_text(EDGE.format(edges=max(1, case.edges), broker=broker.url, least=least))
        # The host ends after its last round, which is not waited for.
        run = HOST.format(rounds=ROUNDS + 1, broker=broker.url, devices=case.edges or case.devices)
        (place / "run.toml").write_text(run)
        edges = [
            stack.enter_context(
                _process(place, f"edge-{number}", "server", "edge", "edge.toml", "--shard", str(number))
            )
            for number in range(case.edges)
        ]
        host = stack.enter_context(_process(place, "host", "server", "run", "run.toml"))
        devices = stack.enter_context(_devices(place, broker.port, case.devices, names))
        found = _Watched(place, host, edges, psutil.Process(broker.pid), devices).figures()
        return {"devices": case.devices, "edges": case.edges, **found}


@dataclass(frozen=True)
class _Watched:
    place: Path
    host: psutil.Process
    edges: list[psutil.Process]
    broker: psutil.Process
    devices: psutil.Process

    def figures(self) -> dict[str, Any]:
        """Of the rounds but the first, from the processes as the rounds are closed."""
        closed = _closed_in(self.place)
        marks = []
        for number in range(1, ROUNDS + 1):
            self._wait(lambda number=number: closed() >= number)  # type: ignore[misc]
            marks.append((time.monotonic(), _cpu_s([self.host]), _cpu_s(self.edges), _cpu_s([self.broker])))
        steps = [[b - a for a, b in zip(before, after, strict=True)] for before, after in itertools.pairwise(marks)]
        wall, host_cpu, edge_cpu, broker_cpu = (statistics.median(column) for column in zip(*steps, strict=True))
        return {
            "round_s": round(wall, 2),
            "host_cpu_s": round(host_cpu, 3),
            "edges_cpu_s": round(edge_cpu, 3),
            "broker_cpu_s": round(broker_cpu, 3),
            "host_mb": _mb([self.host]),
            "edges_mb": _mb(self.edges),
            "broker_mb": _mb([self.broker]),
        }

    def _wait(self, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > until_s:
                raise RoundError(f"no round was closed within {PATIENCE_S:.0f} s; see what the host and the edges say")
            for process in (self.host, *self.edges, self.devices):
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    raise RoundError(f"process {process.pid} of an idle fleet ended by itself; see what it said")
            time.sleep(0.02)


def _closed_in(place: Path) -> Callable[[], int]:
    folder = folder_of(config_from_text((place / "run.toml").read_text(), where="bench scale"))
    at = type(folder)(place / folder.path)

    def closed() -> int:
        if not at.store.exists():
            return 0
        store = open_rounds(at)
        try:
            return len(store.closed())
        finally:
            store.close()

    return closed


@contextmanager
def _process(place: Path, name: str, *words: str) -> Iterator[psutil.Process]:
    with (place / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "fedwright", *words]
        running = subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield psutil.Process(running.pid)
    finally:
        running.kill()
        running.wait()


@contextmanager
def _devices(place: Path, port: int, count: int, fleets: list[str]) -> Iterator[psutil.Process]:
    words = [str(port), "0", str(count), str(place / "devices"), *fleets]
    command = [sys.executable, "-m", "fedwright.benchmarks.processes.idle_devices", *words]
    with (place / "devices.log").open("wb") as log:
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        yield psutil.Process(running.pid)
    finally:
        running.kill()
        running.wait()


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _mb(processes: Sequence[psutil.Process]) -> float:
    return round(float(sum(process.memory_info().rss for process in processes)) / 1e6, 1)
