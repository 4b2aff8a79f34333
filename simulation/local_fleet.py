"""A fleet without a broker: stands where the exchange stands and has the tasks done by processes of this machine."""

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from msgspec import structs

from fedwright.device_runtime.answers import refusal_of
from fedwright.device_runtime.describe.hidden_counts import HiddenCounts
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.device_runtime.train.loop import Evaluation
from fedwright.protocol.artifact import EDGES
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.data_summary import held_back, told
from fedwright.protocol.errors import DeviceError, FedwrightError
from fedwright.protocol.messages import BlobRef, Dismiss, Refusal, Report, SumAsk, Task, Update
from fedwright.protocol.task_blobs import common_blobs, sent_blobs
from fedwright.server_runtime.engine.inline import InlineExecutor
from fedwright.server_runtime.transport.device_channel import Heard
from fedwright.server_runtime.transport.upload_puller import Pulled
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.processes import FreshProcesses
from fedwright.simulation.worker import (
    EvaluationJob,
    Worker,
    WorkerSetup,
    begin,
    leaves_state,
    run_device_task,
    run_measure,
)

BOOT = "simulated"
# Into so many parts the measuring of a fleet is cut for the processes.
MEASURED_AT_ONCE = 64


class Pool(Protocol):
    """Does the work of devices; models: those to be measured, blobs: those of the run."""

    devices: list[str]
    models: BlobStore
    blobs: BlobStore
    engine: Executor

    def run_task(self, device: str, task: Task) -> "Future[Update | Refusal]":
        """Do a device's task."""
        ...

    def measure(self, jobs: Sequence[EvaluationJob]) -> list[tuple[str, Evaluation]]:
        """Measure models on devices' data, in the order of the jobs."""
        ...


class WorkerPool:
    """Processes that do the work of devices; with 0 processes it is done here, at once."""

    def __init__(self, dealt: Dealt, place: WorkerSetup, *, processes: int) -> None:
        arrays = {
            name: array for name, array in (("x", dealt.x), ("y", dealt.y), (EDGES, dealt.edges)) if array is not None
        }
        if processes:
            for name, array in arrays.items():
                np.save(place.data / f"{name}.npy", array)
        self.devices = sorted(place.shares)
        self.models = BlobStore(place.models, sync=False)
        self.blobs = BlobStore(place.blobs, sync=False)
        self._here = Worker(place, arrays) if processes == 0 else None
        self.engine: Executor = InlineExecutor()
        self._pool: ProcessPoolExecutor | None = None
        if processes:
            self._pool = ProcessPoolExecutor(processes, FreshProcesses(), initializer=begin, initargs=(place,))

    def run_task(self, device: str, task: Task) -> "Future[Update | Refusal]":
        """Do a device's task."""
        if self._here is not None:
            return _done(lambda: self._here.run_task(device, task))  # type: ignore[union-attr]
        assert self._pool is not None
        return self._pool.submit(run_device_task, device, task)

    def measure(self, jobs: Sequence[EvaluationJob]) -> list[tuple[str, Evaluation]]:
        """Measure models on devices' data, in the order of the jobs."""
        if self._here is not None:
            return [(job.device, self._here.measure(job)) for job in jobs]
        assert self._pool is not None
        found = self._pool.map(run_measure, jobs, chunksize=1 + len(jobs) // MEASURED_AT_ONCE)
        return [(job.device, evaluation) for job, evaluation in zip(jobs, found, strict=True)]

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class LocalFleet:
    """Every device is present from the start, takes each task at once and never goes away."""

    def __init__(
        self,
        reports: Mapping[str, Report],
        pool: Pool,
        *,
        devices: Path,
        hidden: Mapping[str, HiddenCounts] | None = None,
    ) -> None:
        self._pool = pool
        # Tasks out that leave something on their device.
        self._leaving: set[str] = set()
        self._hidden = hidden or {}
        self._sums: dict[str, SecureSums] = {}
        self._devices = devices
        self._done: queue.SimpleQueue[tuple[str, Future[Update | Refusal]]] = queue.SimpleQueue()
        # All that devices could tell; what they do tell is up to the run, as with real ones.
        self._whole = dict(reports)
        self._asked: dict[str, tuple[str, ...]] = {}
        self._events: list[Heard | Pulled] = [self.reported(device) for device in reports]
        self._has: dict[str, set[str]] = {device: set() for device in reports}
        self._sizes: dict[str, tuple[int, int]] = dict.fromkeys(reports, (0, 0))

    def challenge(self, device: str, tell: Sequence[str] = (), *, profile: bool = False) -> None:
        """The device reports again, with these facts of its data."""
        self._asked[device] = tuple(tell)
        self._events.append(self.reported(device))

    def reported(self, device: str) -> Heard:
        """A device's report, with those facts of its data that the run asked for."""
        whole, asked = self._whole[device], self._asked.get(device, ())
        report = structs.replace(whole, data=told(whole.data, asked), would_tell=held_back(whole.data, asked))
        return Heard(device, BOOT, report)

    def assign(self, device: str, boot: str, task: Task) -> None:
        """Have the task done; what a device would fetch is counted."""
        try:
            if device in self._hidden:
                self._hidden[device].check(task)
        except DeviceError as err:
            self._events.append(Heard(device, BOOT, refusal_of(task.task, err)))
            return
        if leaves_state(task):
            self._leaving.add(task.task)
        up, down = self._sizes[device]
        for ref in common_blobs(task):
            if ref.sha256 not in self._has[device]:
                self._has[device].add(ref.sha256)
                down += ref.size_bytes
        down += sum(ref.size_bytes for ref in sent_blobs(task))
        self._sizes[device] = (up, down)
        work = self._pool.run_task(device, task)
        work.add_done_callback(lambda done: self._done.put((device, done)))

    def ask(self, device: str, ask: SumAsk) -> None:
        """The device answers at once."""
        if ask.counts is not None:
            self._events.append(Heard(device, BOOT, self._hidden[device].answer(ask, self._offer)))
            return
        if ask.stage == "keys" or device not in self._sums:
            # The change was put there by the process that did the task.
            self._sums[device] = SecureSums(device, self._devices / device)
        self._events.append(Heard(device, BOOT, self._sums[device].answer(ask, self._offer)))

    def _offer(self, data: bytes, chunk_bytes: int) -> BlobRef:
        """Masked changes lie in the server's own store before they are announced."""
        return self._pool.blobs.keep(data, chunk_bytes=chunk_bytes)

    def withdraw(self, task: str) -> None:
        """Tasks that were answered are over."""

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """What rounding left out counts as sent, and what personal layers learned counts, once the update is used."""
        if task not in self._leaving:
            return
        self._leaving.discard(task)
        ErrorFeedback(self._devices / device).settle(task, used=not problem)
        PersonalLayers(self._devices / device).settle(task, used=not problem)

    def dismiss(self, device: str, dismissal: Dismiss) -> None:
        """A device that does not fit the run ends the simulation: its data is ours to mend."""
        if dismissal.why != "run_over":
            raise FedwrightError(f"simulated device {device} was turned away: {dismissal.reason}")

    def pull(self, device: str, ref: BlobRef) -> None:
        """Updates lie in the server's own store before they are announced."""

    def edge_of(self, device: str) -> str | None:
        """No edges here."""
        del device
        return None

    def recall(self, edge: str, task: str) -> None:
        """No edges here."""

    def recall_all(self, device: str) -> None:
        """No edges here."""

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """Reports at first, then the answers that have come in."""
        events, self._events = self._events, []
        try:
            device, work = self._done.get(timeout=0.0 if events else timeout_s)
            while True:
                events.append(Heard(device, BOOT, self._counted(device, work.result())))
                device, work = self._done.get_nowait()
        except queue.Empty:
            return events

    def _counted(self, device: str, answer: Update | Refusal) -> Update | Refusal:
        """The answer with the bytes that it would have cost over a link."""
        if isinstance(answer, Refusal):
            return answer
        up, down = self._sizes[device]
        if answer.tensors is not None:
            up += answer.tensors.size_bytes
            self._pool.blobs.vouch(answer.tensors)
        self._sizes[device] = (up, down)
        return structs.replace(answer, stats=structs.replace(answer.stats, bytes_up=up, bytes_down=down))


def _done(work: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(work())
    return future
