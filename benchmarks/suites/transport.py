"""`fedwright bench transport`: how fast blobs and messages travel, against a raw TCP relay in the same run."""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from fedwright.benchmarks.harness import idle_rounds
from fedwright.benchmarks.processes.transport_peer import BUFFER_BYTES, FLEET
from fedwright.benchmarks.suites.growth import exponent
from fedwright.protocol import topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import LinkError, NoQuorum
from fedwright.protocol.link import Link, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Update
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard
from fedwright.server_runtime.transport.upload_puller import Pulled

# paho waits with select(), which ends at file 1024; a link has three.
LINKS_PER_PROCESS = 300
WAIT_S = 120.0
# For all devices of a round to send a model of a megabyte, on a machine that has other work.
ROUND_WAIT_S = 600.0
MODEL_BYTES = 1_000_000
MOST_EXPONENT = 1.0
# What the clock of CPU time and other work on the machine may add to an exponent.
EXPONENT_ERROR = 0.05
IDLE_S = 5.0
# Looking at the memory takes time that the transfer would have to pay for.
LOOK_S = 0.01

Check = dict[str, Any]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure transfers, round trips, many uploads and many idle devices; `--quick` takes smaller numbers."""
    quick = bool(getattr(args, "quick", False))
    blob_bytes = 10_000_000 if quick else 50_000_000
    uploaders, upload_bytes = (20, 500_000) if quick else (100, 4_000_000)
    idle = 50 if quick else 1000
    with Broker() as broker:
        transfer = measure_transfer(broker, blob_bytes, repeats=5)
        trips = measure_round_trips(broker, 200)
        uploads = measure_uploads(broker, uploaders, upload_bytes)
        models = [measure_models(broker, count) for count in ((10, 40) if quick else (100, 300, 1000))]
        crowd = measure_crowd(broker, idle)
        rounds = idle_rounds.measure(broker, devices=10, rounds=3 if quick else 10)
        kind = broker.kind
    return {
        "broker": kind,
        "tables": {
            "one blob, MB/s": [transfer],
            "reliable round trip": [trips],
            "uploads of many devices": [uploads],
            f"a model of {MODEL_BYTES / 1e6:g} MB from each device": models,
            "idle devices": [crowd],
            "rounds of devices that do nothing": [rounds],
        },
        "checks": [
            _check("blob transfer / two-hop raw TCP relay", transfer["ratio"], ">= 0.25", transfer["ratio"] >= 0.25),
            _check("broker memory growth, MB", transfer["broker_growth_mb"], "< 20", transfer["broker_growth_mb"] < 20),
            _check("server memory growth, MB", uploads["server_growth_mb"], "< 50", uploads["server_growth_mb"] < 50),
            *_growth_checks(models),
            _check("reports of all devices, s", crowd["reports_s"], "< 10", crowd["reports_s"] < 10),
            _check("round of ten devices that do nothing, s", rounds["round_s"], "< 0.5", rounds["round_s"] < 0.5),
            _check("CPU s per device and round", rounds["device_cpu_s"], "< 0.05", rounds["device_cpu_s"] < 0.05),
            _check("server CPU while idle, share", crowd["idle_cpu_ratio"], "< 0.02", crowd["idle_cpu_ratio"] < 0.02),
        ],
    }


def measure_transfer(broker: Broker, size_bytes: int, *, repeats: int) -> dict[str, float]:
    """MB/s of one blob from one process to another: by raw relay, and pulled through the broker to a checked file."""
    raw_s: list[float] = []
    pulled_s: list[float] = []
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    for number in range(repeats):
        raw_s.append(_time_raw(size_bytes))
        with _peers(broker, 1, size_bytes, first=number) as server:
            pulled_s.append(_time_pulls(server, 1)["wall_s"])
    growth = process.memory_info().rss - before
    raw, pulled = (size_bytes / statistics.median(times) / 1e6 for times in (raw_s, pulled_s))
    # Each pair was measured within a second, so that other load on the machine weighs on both.
    ratio = statistics.median(by_relay / by_broker for by_relay, by_broker in zip(raw_s, pulled_s, strict=True))
    return {
        "size_mb": size_bytes / 1e6,
        "raw_mb_per_s": round(raw, 1),
        "pulled_mb_per_s": round(pulled, 1),
        "ratio": round(ratio, 3),
        "broker_growth_mb": round(growth / 1e6, 1),
    }


def measure_round_trips(broker: Broker, count: int) -> dict[str, float]:
    """Milliseconds from a reliable message to its reliable answer."""
    with (
        closing(connect(broker.url, client_id="here")) as here,
        closing(connect(broker.url, client_id="there")) as there,
    ):
        here.subscribe("trip/back")
        there.subscribe("trip/out")
        times_s = []
        for _ in range(count):
            started_s = time.perf_counter()
            here.send("trip/out", b"x" * 100)
            _next(there)
            there.send("trip/back", b"x" * 100)
            _next(here)
            times_s.append(time.perf_counter() - started_s)
    return {"median_ms": round(statistics.median(times_s) * 1e3, 2), "worst_ms": round(max(times_s) * 1e3, 2)}


def measure_uploads(broker: Broker, count: int, size_bytes: int) -> dict[str, float]:
    """Pull an update from each of many devices, as the server does; its memory must not grow with them."""
    with _peers(broker, count, size_bytes) as server:
        return {"devices": count, "mb_each": size_bytes / 1e6, **_time_pulls(server, count)}


def measure_models(broker: Broker, count: int) -> dict[str, float]:
    """Seconds, and CPU of server and broker, until every device's model has been pulled, checked and is on the disk."""
    process = psutil.Process(broker.pid)
    with _peers(broker, count, MODEL_BYTES) as server:
        before_s, own_s = sum(process.cpu_times()[:2]), time.process_time()
        timed = _time_pulls(server, count, wait_s=ROUND_WAIT_S)
        server_s, broker_s = time.process_time() - own_s, sum(process.cpu_times()[:2]) - before_s
    return {
        "devices": count,
        "wall_s": timed["wall_s"],
        "server_cpu_s": round(server_s, 3),
        "broker_cpu_s": round(broker_s, 3),
        "server_growth_mb": timed["server_growth_mb"],
    }


def _growth_checks(rows: list[dict[str, float]]) -> list[Check]:
    """How CPU time grows with devices: the exponent of their number."""
    counts, checks = [row["devices"] for row in rows], []
    for name in ("server", "broker"):
        found = exponent(counts, [max(1e-3, row[f"{name}_cpu_s"]) for row in rows])
        holds = found <= MOST_EXPONENT + EXPONENT_ERROR
        checks.append(
            _check(f"{name} CPU by devices that send a model, exponent", found, f"<= {MOST_EXPONENT:g}", holds)
        )
    return checks


def measure_crowd(broker: Broker, count: int) -> dict[str, float]:
    """What many devices cost the server that do nothing but report, and the broker's memory with them."""
    with _peers(broker, count, 0) as server:
        timed = time_crowd(server, count)
        broker_mb = psutil.Process(broker.pid).memory_info().rss / 1e6
        return {"devices": count, **timed, "broker_mb": round(broker_mb, 1)}


def time_crowd(link: Link, count: int) -> dict[str, float]:
    """Seconds until the server knows every device, and this process' CPU share while it then waits for them."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = BlobStore(Path(folder))
        started_s = time.perf_counter()
        planner = Planner("crowd", Builder(), blobs, deadline_s=WAIT_S)
        channel, store = DeviceChannel(link, FLEET, blobs=blobs), MemoryRoundStore()
        tracker = TaskTracker(channel, planner, store=store, reader=UpdateReader(planner))
        try:
            tracker.gather(count, timeout_s=WAIT_S)
        except NoQuorum as err:
            heard = len(tracker.present())
            raise LinkError(f"only {heard} of {count} devices reported in {WAIT_S} s; is this machine busy?") from err
        reports_s = time.perf_counter() - started_s
        cpu_s, ends_s = time.process_time(), tracker.clock() + IDLE_S
        while tracker.clock() < ends_s:
            tracker.poll(ends_s)
        idle_cpu_s = time.process_time() - cpu_s
    return {"reports_s": round(reports_s, 3), "idle_cpu_ratio": round(idle_cpu_s / IDLE_S, 4)}


def _time_pulls(link: Link, count: int, *, wait_s: float = WAIT_S) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        own = psutil.Process()
        before = peak = own.memory_info().rss
        started_s = look_s = time.perf_counter()
        exchange = DeviceChannel(link, FLEET, blobs=BlobStore(Path(folder)))
        done = 0
        while done < count:
            if time.perf_counter() - started_s > wait_s:
                raise LinkError(f"only {done} of {count} uploads arrived in {wait_s:.0f} s; is this machine busy?")
            for event in exchange.poll(1.0):
                if isinstance(event, Heard) and isinstance(event.message, Update) and event.message.tensors:
                    exchange.pull(event.device, event.message.tensors)
                done += isinstance(event, Pulled) and not event.problem
            if time.perf_counter() >= look_s:
                peak = max(peak, own.memory_info().rss)
                look_s = time.perf_counter() + LOOK_S
        wall_s = time.perf_counter() - started_s
    return {"wall_s": round(wall_s, 3), "server_growth_mb": round((peak - before) / 1e6, 1)}


def _time_raw(size_bytes: int) -> float:
    """Seconds for the bytes to cross sender → relay → here, as they cross sender → broker → here."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        hop = stack.enter_context(_peer("relay", str(server.getsockname()[1])))
        sender = stack.enter_context(_peer("send-raw", hop.ready.split()[1], str(size_bytes)))
        incoming = stack.enter_context(server.accept()[0])
        buffer = memoryview(bytearray(BUFFER_BYTES))
        started_s = time.perf_counter()
        sender.go()
        left = size_bytes
        while left:
            left -= incoming.recv_into(buffer)
        return time.perf_counter() - started_s


class _Peer:
    """A child process of the benchmark."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self._process = process
        self.ready = ready

    def go(self) -> None:
        """Let a peer that waits begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def _peer(*arguments: str) -> Iterator[_Peer]:
    command = [sys.executable, "-m", "fedwright.benchmarks.processes.transport_peer", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready.startswith("ready"):
                raise LinkError(f"a peer of the benchmark ({arguments[0]}) did not start; see its message above")
            yield _Peer(process, ready)
        finally:
            process.communicate(timeout=WAIT_S)


@contextmanager
def _peers(broker: Broker, count: int, blob_bytes: int, *, first: int = 0) -> Iterator[Link]:
    """So many devices in other processes; gives the server's link."""
    with ExitStack() as stack:
        for start in range(first, first + count, LINKS_PER_PROCESS):
            several = min(LINKS_PER_PROCESS, first + count - start)
            stack.enter_context(_peer("devices", broker.url, str(start), str(several), str(blob_bytes)))
        link = stack.enter_context(closing(connect(broker.url, client_id="server")))
        link.subscribe(topics.up_all(FLEET))
        yield link


def _next(link: Link) -> bytes:
    received = link.receive(WAIT_S)
    if received is None:
        raise LinkError(f"no answer through the broker in {WAIT_S:.0f} s; is this machine busy?")
    return bytes(received.payload)


def _check(name: str, value: float, target: str, holds: bool) -> Check:
    return {"name": name, "value": value, "target": target, "holds": holds}
