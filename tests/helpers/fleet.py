"""A whole fleet in this process: real coordinator, real agents in threads, the tiny artifact, a broker in memory."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedwright.device_runtime.agent import Agent
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.equipment import Equipment
from fedwright.device_runtime.in_process import InProcessRunner
from fedwright.device_runtime.resources import Resources
from fedwright.device_runtime.run_task import Tools
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.device_runtime.self_measure import SelfMeasurement
from fedwright.device_runtime.server_choice import DeviceIdentity
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import codec, topics
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.base import Link
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import (
    LARGE_CHUNK_BYTES,
    Board,
    Challenge,
    DataSummary,
    Gone,
    Report,
)
from fedwright.server_runtime.methods.base import Method, Setting
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.orders import OrderBook
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.stage import RoundOptions
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.run import coordinate
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from helpers.tiny_artifact import CLASSES, FEATURES, make_artifact, start_weights

FLEET = "test"
SPEC = ModelSpec("tiny", (FEATURES,), CLASSES)
BOARD = Board("test board", "x86_64", 1, 10**9, "onnxruntime", 1)
WAIT_S = 20.0


def make_data(device: str, *, samples: int = 24) -> LocalData:
    """Points in FEATURES dimensions whose class depends on them, another draw for each device."""
    rng = np.random.default_rng(list(device.encode()))
    x = rng.normal(size=(samples + 8, FEATURES)).astype(np.float32)
    y = (np.abs(x).argmax(axis=1) + (x.sum(axis=1) > 0)).astype(np.int64) % CLASSES
    counts = tuple(int(c) for c in np.bincount(y[:samples], minlength=CLASSES))
    return LocalData(x[:samples], y[:samples], x[samples:], y[samples:], CLASSES, counts, (FEATURES,))


def setting(**changes: Any) -> Setting:
    """The common part of a method's birth."""
    fields = {
        "spec": SPEC,
        "optimizer": Optimizer(momentum=0.9),
        "initial": start_weights(),
        "learning_rate": 0.1,
        "batch": 8,
        "epochs": 2,
        "seed": 7,
    }
    return Setting(**{**fields, **changes})


def report(**changes: Any) -> Report:
    """What a device with fitting data says."""
    summary = DataSummary(samples=24, holdout=8, input_shape=[FEATURES], classes=CLASSES)
    return Report(**{"agent": "test", "board": BOARD, "free_bytes": 10**9, "data": summary, **changes})


class LinkMaker(Protocol):
    """What gives links by name: a broker in memory, or one at an address."""

    def link(self, name: str, /) -> Link:
        """A new connection."""
        ...


class TinyBuilder:
    """Builds the same tiny artifact whatever is asked for."""

    def build(self, structure: Structure) -> Artifact:
        """See Builder."""
        return make_artifact()


class Scripted:
    """A device that says what the test wants and does nothing by itself."""

    def __init__(self, broker: MemoryBroker, device: str, *, boot: str | None = None) -> None:
        self.device = device
        self.boot = boot or codec.new_id()
        gone = codec.encode(Gone(), sender=device, boot=self.boot)
        self.link = broker.link(device, will=(topics.up(FLEET, device), gone))
        self.link.subscribe(topics.down(FLEET, device))
        self.link.subscribe(topics.shared(FLEET))

    def join(self) -> None:
        """Report when the server asks who is there."""
        self.hear(Challenge)
        self.say(report())

    def say(self, body: Any, *, sender: str | None = None) -> None:
        """Send a message, perhaps in another's name."""
        self.say_bytes(codec.encode(body, sender=sender or self.device, boot=self.boot))

    def say_bytes(self, payload: bytes) -> None:
        """Send anything at all."""
        self.link.send(topics.up(FLEET, self.device), payload)

    def hear(self, kind: type | tuple[type, ...]) -> Any:
        """Wait for the next message of a kind."""
        while True:
            received = self.link.receive(WAIT_S)
            assert received is not None, f"no {kind} came"
            body = codec.decode(received.payload).body
            if isinstance(body, kind):
                return body


class Running:
    """A real agent in a thread."""

    def __init__(self, broker: LinkMaker, device: str, folder: Path, **changes: Any) -> None:
        self.link = broker.link(device)
        self.journal = Journal(folder / device)
        self.tools = Tools(
            make_trainer=changes.get("make_trainer", lambda a, s, f: PortableTrainer(a, sides=s, frozen=f)),
            check=changes.get("check", lambda artifact, recipe: None),
            checkpoint=Checkpoint(folder / device / "checkpoint", every_s=changes.get("checkpoint_s", 60.0)),
            personal=PersonalLayers(folder / device),
        )
        data, residual = changes.get("data", make_data(device)), ErrorFeedback(folder / device)
        self.resources = Resources(
            board=BOARD,
            told=changes.get("told") or data.summary(),
            blobs=BlobStore(folder / device / "blobs"),
            journal=self.journal,
            residual=residual,
            personal=self.tools.personal,
            checkpoint=self.tools.checkpoint,
            runner=changes.get("runner") or InProcessRunner(Equipment(data, self.tools, residual, folder / device)),
            trains=changes.get("trains", True),
            hidden=changes.get("hidden"),
            owner=changes.get("owner"),
            measurement=changes.get("measurement") or SelfMeasurement(),
            sums=changes.get("sums") or SecureSums(device, folder / device),
        )
        self.boot = codec.new_id()
        fleet = changes.get("fleet", FLEET)
        further, patience_s = changes.get("further", ()), changes.get("patience_s", WAIT_S)
        identity = DeviceIdentity(device, fleet, self.boot, changes.get("verify"), further, patience_s)
        self.agent = changes.get("make_agent", Agent)(self.link, identity, self.resources)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.agent.run()
        except Exception as err:  # noqa: BLE001  (handed to the test)
            self.error = err

    def stop(self) -> None:
        """End the agent and wait for it."""
        self.agent.stop()
        self.thread.join(WAIT_S)
        self.journal.close()
        self.link.close()


class Server:
    """A coordinator over a store that outlives it, as a server process over its folder."""

    def __init__(
        self, broker: LinkMaker, folder: Path, *, devices: int, chunk_bytes: int = LARGE_CHUNK_BYTES, **options: Any
    ) -> None:
        self.chunk_bytes = chunk_bytes
        # How long to wait for the first devices, where rounds should not wait as long.
        self.first_wait_s: float | None = None
        self.broker = broker
        self.folder = folder
        self.store = MemoryRoundStore()
        self.events: list[events.Event] = []
        self.options = RoundOptions(**{"rounds": 2, "devices": devices, "seed": 7, "join_timeout_s": WAIT_S, **options})

    def run(self, *, observer: Callable[..., Any] | None = None, method: Method | None = None) -> Method:
        """One life of the server process, from its start to the end of the run."""
        method = method or FedAvg(FedAvgParams(), setting())
        link = self.broker.link("server")

        def observe(event: events.Event) -> None:
            self.events.append(event)
            if observer is not None:
                observer(event)

        try:
            blobs = BlobStore(self.folder / "server-blobs")
            planner = Planner("run", TinyBuilder(), blobs, self.options.deadline_s, self.chunk_bytes)
            reader = UpdateReader(planner)
            channel = DeviceChannel(link, FLEET, blobs=blobs)
            tracker = TaskTracker(channel, planner, store=self.store, reader=reader, observer=observe)
            tracker.gather(self.options.devices, timeout_s=self.first_wait_s or self.options.join_timeout_s)
            coordinator = coordinate(tracker, planner, store=self.store, reader=reader, options=self.options)
            coordinator.obey(OrderBook(self.folder))
            coordinator.run(method, SPEC)
            tracker.dismiss_all("done")
        finally:
            link.close()
        return method

    def seen(self, kind: type) -> list[Any]:
        """Events of a kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


@contextmanager
def agents(broker: LinkMaker, folder: Path, *devices: str) -> Iterator[list[Running]]:
    """Real agents that run while the block does."""
    with ExitStack() as stack:
        running = []
        for device in devices:
            running.append(Running(broker, device, folder))
            stack.callback(running[-1].stop)
        yield running
