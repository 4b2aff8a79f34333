"""A simulation's devices on a Ray cluster: workers that keep trainers and data, while devices' state stays here.

A task goes out with all that its device keeps and comes back with what it made of that, so a worker that is lost takes
nothing with it. Blobs pass by reference: put into Ray's store once, fetched by a worker once, from whoever has them.
"""

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import ray

from fedwright.device_runtime.train.loop import Evaluation
from fedwright.protocol.artifact import EDGES
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.messages import Refusal, Task, Update
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.task_blobs import blobs_of
from fedwright.server_runtime.config_sections.engine import EngineSection
from fedwright.server_runtime.engine.cluster import connected
from fedwright.server_runtime.engine.ray_executor import RayExecutor
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.worker import EvaluationJob, Worker, WorkerSetup

# Blobs that a worker keeps for its next tasks, and that this process keeps in Ray's store.
WORKER_BYTES = 512 * 1024**2
KEPT_BYTES = 256 * 1024**2

Refs = dict[str, Any]
"""Objects in Ray's store by the name of their blob."""


@dataclass(frozen=True)
class Done:
    """What a worker made of a task: the answer, the blobs that it names, what the device keeps now and no longer."""

    answer: Update | Refusal
    blobs: list[bytes]
    files: dict[str, bytes]
    gone: list[str]


class RayPool:
    """Does the work of devices on a cluster."""

    def __init__(self, dealt: Dealt, place: WorkerSetup, engine: EngineSection) -> None:
        self.devices = sorted(place.shares)
        self.models = BlobStore(place.models, sync=False)
        self.blobs = BlobStore(place.blobs, sync=False)
        self._place = place
        self._known: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        with ExitStack() as stack:
            stack.enter_context(connected(engine))
            arrays = {"x": dealt.x, "y": dealt.y, EDGES: dealt.edges}
            held = {name: ray.put(array) for name, array in arrays.items() if array is not None}
            self.engine: Executor = RayExecutor(engine.workers, begin=(begin, (place, held)))
            stack.callback(self.engine.shutdown, cancel_futures=True)
            self._stack = stack.pop_all()

    def run_task(self, device: str, task: Task) -> "Future[Update | Refusal]":
        """Do a device's task."""
        refs = {ref.sha256: self._share(self.blobs, ref.sha256) for ref in blobs_of(task)}
        work = self.engine.submit(run_device_task, device, task, refs, _files(self._place.devices / device))
        answer: Future[Update | Refusal] = Future()
        work.add_done_callback(lambda done: self._keep(device, done, answer))
        return answer

    def measure(self, jobs: Sequence[EvaluationJob]) -> list[tuple[str, Evaluation]]:
        """Measure models on devices' data, in the order of the jobs."""
        work = []
        for job in jobs:
            refs = {sha256: self._share(self.models, sha256) for sha256 in (job.artifact, job.weights)}
            files = _files(self._place.devices / job.device) if job.personal else {}
            work.append(self.engine.submit(run_measure, job, refs, files))
        return [(job.device, done.result()) for job, done in zip(jobs, work, strict=True)]

    def _share(self, store: BlobStore, sha256: str) -> Any:
        """A blob in Ray's store; those of late are kept there, and all that a task on its way needs."""
        with self._lock:
            found = self._known.pop(sha256, None)
            if found is None:
                data = store.read(sha256)
                found = (ray.put(np.frombuffer(data, np.uint8)), len(data))
            self._known[sha256] = found
            while sum(size for _, size in self._known.values()) > KEPT_BYTES and len(self._known) > 1:
                self._known.popitem(last=False)
            return found[0]

    def _keep(self, device: str, done: "Future[Done]", answer: "Future[Update | Refusal]") -> None:
        """Write down what a task left, then let it be heard."""
        try:
            found = done.result()
            for data in found.blobs:
                self.blobs.put_bytes(data)
            folder = self._place.devices / device
            for name, data in found.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                replace_file(folder / name, data)
            for name in found.gone:
                (folder / name).unlink()
            answer.set_result(found.answer)
        except BaseException as err:  # noqa: BLE001 - whoever waits for the answer gets it
            answer.set_exception(err)

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class RemoteWorker:
    """A worker whose files lie in a folder of its own machine."""

    def __init__(self, place: WorkerSetup, held: Mapping[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedwright-worker-")
        root = Path(self._folder.name)
        self._place = replace(place, data=root, blobs=root / "blobs", devices=root / "devices")
        self._blobs = BlobStore(self._place.blobs, limit_bytes=WORKER_BYTES, sync=False)
        self._models = BlobStore(self._place.models, limit_bytes=WORKER_BYTES, sync=False)
        # Arrays in Ray's store are mapped, so that all workers of a machine share one copy.
        self._worker = Worker(self._place, {name: ray.get(ref) for name, ref in held.items()})

    def run_task(self, device: str, task: Task, refs: Refs, files: Mapping[str, bytes]) -> Done:
        """Do a task for a device that keeps these files."""
        _fetch(self._blobs, refs)
        folder = self._settle(device, files)
        answer = self._worker.run_task(device, task)
        kept = _files(folder)
        blobs = []
        if isinstance(answer, Update) and answer.tensors is not None:
            blobs.append(self._blobs.read(answer.tensors.sha256))
            self._blobs.remove(answer.tensors.sha256)
        changed = {name: data for name, data in kept.items() if files.get(name) != data}
        return Done(answer, blobs, changed, sorted(files.keys() - kept.keys()))

    def measure(self, job: EvaluationJob, refs: Refs, files: Mapping[str, bytes]) -> Evaluation:
        """Measure a model on the rows of a device that keeps these files."""
        _fetch(self._models, refs)
        self._settle(job.device, files)
        return self._worker.measure(job)

    def _settle(self, device: str, files: Mapping[str, bytes]) -> Path:
        """The device's folder as it is at home; of those before, nothing is left."""
        shutil.rmtree(self._place.devices, ignore_errors=True)
        folder = self._place.devices / device
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder


def _fetch(store: BlobStore, refs: Refs) -> None:
    for sha256, ref in refs.items():
        if not store.has(sha256):
            store.put_bytes(np.asarray(ray.get(ref)).tobytes())


def _files(folder: Path) -> dict[str, bytes]:
    """What a device keeps."""
    found = [file for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else []
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


_workers: list[RemoteWorker] = []


def begin(place: WorkerSetup, held: Mapping[str, Any]) -> None:
    """Make this process a worker of a cluster."""
    _workers[:] = [RemoteWorker(place, held)]


def run_device_task(device: str, task: Task, refs: Refs, files: Mapping[str, bytes]) -> Done:
    """Do a task in a process that has begun."""
    return _workers[0].run_task(device, task, refs, files)


def run_measure(job: EvaluationJob, refs: Refs, files: Mapping[str, bytes]) -> Evaluation:
    """Measure a model in a process that has begun."""
    return _workers[0].measure(job, refs, files)
