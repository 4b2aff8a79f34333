"""What a round costs when the devices do nothing: real agents, a model of 62 thousand parameters, no training step."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.coordinator import Coordinator
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.stage import RoundOptions
from fedwright.server_runtime.rounds.store.base import RoundStore
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.spec import ModelSpec, Optimizer
from fedwright.server_runtime.transport.device_channel import DeviceChannel

# LeNet on 32 x 32 colour images: 62,006 parameters, the size that peers are measured with.
SPEC = ModelSpec("lenet-valid", (3, 32, 32), 10)
FLEET = "overhead"


Stores = Callable[[Path], AbstractContextManager[tuple[RoundStore, BlobStore]]]


@contextmanager
def sqlite_and_folder(folder: Path) -> Iterator[tuple[RoundStore, BlobStore]]:
    """What a run uses unless its config says otherwise."""
    with closing(SqliteRoundStore(folder / "rounds.sqlite")) as store:
        yield store, BlobStore(folder / "blobs")


def measure(broker: Broker, *, devices: int, rounds: int, stores: Stores = sqlite_and_folder) -> dict[str, Any]:
    """Middle wall seconds of a round; CPU seconds and bytes per device, CPU seconds and memory of the server.

    The first round, which builds the graph, does not count.
    """
    names = [f"d{number}" for number in range(devices)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = stack.enter_context(_agents(broker.url, folder, names))
        link = stack.enter_context(closing(connect(broker.url, client_id="overhead-server")))
        store, blobs = stack.enter_context(stores(folder))
        before_mb = _rss_mb()
        seconds: list[float] = []
        cpu: list[float] = []
        own: list[float] = []

        def note(event: events.Event) -> None:
            if isinstance(event, events.RoundClosed):
                seconds.append(event.seconds)
                own.append(time.process_time())
                cpu.append(sum(_cpu_s(process) for process in processes))

        planner = Planner("overhead", Builder(), blobs, deadline_s=60.0)
        reader = UpdateReader(planner)
        channel = DeviceChannel(link, FLEET, blobs=blobs)
        tracker = TaskTracker(channel, planner, store=store, reader=reader, observer=note)
        tracker.gather(devices, timeout_s=60.0)
        module = zoo.create(SPEC, seed=0)
        weights = initial_weights(module)
        setting = Setting(SPEC, Optimizer(), weights, learning_rate=0.0, batch=32, epochs=0, seed=0)
        options = RoundOptions(rounds + 1, devices, seed=0)
        coordinator = Coordinator(tracker, planner, store=store, reader=reader, options=options)
        coordinator.run(FedAvg(FedAvgParams(), setting), SPEC)
        moved = link.sent_bytes + link.received_bytes
    return {
        "devices": devices,
        "parameters": int(sum(value.size for value in weights.values())),
        "round_s": round(statistics.median(seconds[1:]), 3),
        "server_mb": round(_rss_mb() - before_mb, 1),
        "bytes_per_device": round(moved / (rounds + 1) / devices),
        "device_cpu_s": round((cpu[-1] - cpu[0]) / rounds / devices, 4),
        "server_cpu_s": round((own[-1] - own[0]) / rounds, 4),
    }


@contextmanager
def _agents(url: str, folder: Path, names: list[str]) -> Iterator[list[psutil.Process]]:
    data = folder / "data.npz"
    np.savez(data, x=np.zeros((10, *SPEC.input_shape), np.float32), y=np.arange(10))
    common = ["--broker", url, "--fleet", FLEET, "--data", f"npz:{data}", "--state", str(folder), "--threads", "1"]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            command = [sys.executable, "-m", "fedwright", "device", "run", "--quiet", "--device", name, *common]
            running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield [psutil.Process(process.pid) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
