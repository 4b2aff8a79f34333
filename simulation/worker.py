"""What one process of a simulation does: tasks as an agent does them, for any device, with sessions kept between."""

import signal
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.run_task import Result, Tools, run_task
from fedwright.device_runtime.secure.change import row_of
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.device_runtime.task_inputs import inputs_of
from fedwright.device_runtime.train.base import Tensors, Trainer
from fedwright.device_runtime.train.check import need_bytes
from fedwright.device_runtime.train.loop import Evaluation, evaluate, train
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import deltas, tensors
from fedwright.protocol.artifact import EDGES, Artifact
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadArtifact, BadBlob, FedwrightError, OverBudget
from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.messages import Recipe, Refusal, Task, Update
from fedwright.simulation.attacks import Attack, spoil_change, spoil_rows
from fedwright.simulation.dealing import Array, Labelling, rows_of
from fedwright.simulation.partition import Share

# Sessions that one process keeps: as many as a fleet has different widths, without holding every one ever used.
KEPT_TRAINERS = 16
# Blobs whose files are known, and models that stay decoded for the next device, as far as these are small.
KEPT_PATHS = 1024
KEPT_WEIGHTS = 8
MOST_KEPT_BYTES = 8 * 1024**2
NEVER_S = 1e12
EVALUATION_BATCH = 256
# Side inputs of element masks, by the name of their parameter.
MASKS = "mask/"

Part = Literal["val", "test", "val before", "test before", "val after", "test after"]
"""Of a device's data: to choose by or to test on, and whether its model is trained on its own rows before."""


@dataclass(frozen=True)
class WorkerSetup:
    """Where a process finds data and blobs; `free_bytes` of each device is checked against what a task needs.

    hostile: devices that do what `attack` says. count_bytes: updates are packed as for a link, for their sizes.
    goal: what the labels are for.
    """

    data: Path
    blobs: Path
    devices: Path
    classes: int
    shares: Mapping[str, Share]
    free_bytes: Mapping[str, int]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hostile: frozenset[str] = frozenset()
    attack: Attack = "sign-flip"
    count_bytes: bool = True
    goal: str = CLASSIFY

    @property
    def models(self) -> Path:
        """Models to be measured, apart from the run's own blobs."""
        return self.data / "models"


@dataclass(frozen=True)
class EvaluationJob:
    """Measure weights under an artifact's evaluation graph on one part of a device's data.

    personal: layers that the device has of its own, in this run. class_names: all classes of the run, if named.
    own: training on the device's rows before it is measured; entries of matrices that are zero stay so where the
    artifact has element masks.
    """

    device: str
    artifact: str
    weights: str
    part: Part = "test"
    run: str = ""
    personal: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    own: Recipe | None = None


class Worker:
    """Does tasks for any device of the fleet; arrays: the data set, where it is not in the folder of the data."""

    def __init__(self, place: WorkerSetup, arrays: Mapping[str, Array] | None = None) -> None:
        self._place = place
        self._blobs = BlobStore(place.blobs, sync=False)
        self._models = BlobStore(place.models, sync=False)
        arrays = _arrays(place.data) if arrays is None else arrays
        self._x, self._y, self._edges = arrays["x"], arrays["y"], arrays.get(EDGES)
        self._trainers: OrderedDict[str, tuple[PortableTrainer, Tensors]] = OrderedDict()
        self._artifact = lru_cache(maxsize=KEPT_TRAINERS)(self._read_artifact)
        self._model = lru_cache(maxsize=1)(lambda sha256: tensors.load(self._models.path(sha256)))
        # Of the model that was measured last: its artifact and weights, while they are in their trainer.
        self._loaded: tuple[str, str] | None = None
        self._path = lru_cache(maxsize=KEPT_PATHS)(self._blobs.path)
        self._unpacked = lru_cache(maxsize=KEPT_TRAINERS)(lambda path: artifacts.unpack(path.read_bytes()))
        self._weights = lru_cache(maxsize=KEPT_WEIGHTS)(deltas.load)

    def run_task(self, device: str, task: Task) -> Update | Refusal:
        """Do a task as an agent would; a refusal says why it could not."""
        try:
            result = self._run_task(device, task)
        except OverBudget as err:
            return Refusal(task.task, "over_budget", str(err), err.need_bytes, err.free_bytes)
        except (BadArtifact, BadBlob) as err:
            return Refusal(task.task, "bad_artifact" if isinstance(err, BadArtifact) else "bad_blob", str(err))
        except FedwrightError as err:
            return Refusal(task.task, "failed", str(err))
        ref = None
        if result.tensors and device in self._place.hostile:
            spoilt = spoil_change(dict(result.tensors), self._place.attack, seed=task.recipe.seed)
            result = replace(result, tensors=spoilt)
        if result.tensors and task.sum is not None:
            return self._kept(device, task, result)
        if result.tensors:
            ref = self._blobs.keep(self._encoded(device, task, result))
        return Update(task=task.task, round=task.round, stats=result.stats, tensors=ref)

    def _encoded(self, device: str, task: Task, result: Result) -> bytes:
        """An update as an agent sends it; one that loses nothing is packed only where its bytes are to be counted."""
        if not self._place.count_bytes and not (leaves_state(task) or result.masks):
            return tensors.save(result.tensors)
        return ErrorFeedback(self._folder(device)).encode(task, result.tensors, result.masks)

    def _kept(self, device: str, task: Task, result: Result) -> Update | Refusal:
        """Leave the change with the device for a sum, as an agent would."""
        folder = self._folder(device)
        file = folder / "result"
        try:
            row_of(result.tensors, task, result.stats).tofile(file)
        except FedwrightError as err:
            return Refusal(task.task, "failed", str(err))
        SecureSums(device, folder).take(task, result.stats, file)
        return Update(task=task.task, round=task.round, stats=result.stats)

    def measure(self, job: EvaluationJob) -> Evaluation:
        """Accuracy and loss of a model on a device's data."""
        artifact, weights = self._artifact(job.artifact), self._model(job.weights)
        loaded = (job.artifact, job.weights)
        trainer = self._trainer(artifact, _kept_entries(artifact, weights), {})
        if job.personal or loaded != self._loaded:
            trainer.load(PersonalLayers(self._place.devices / job.device).over(weights, job.personal, run=job.run))
        # The next device may have the same model, which is in its place then.
        self._loaded = None if job.personal or job.own is not None else loaded
        data = self.data(job.device, chosen_by=job.part.startswith("val")).numbered_as(job.class_names)
        if job.own is not None:
            train(trainer, data, job.own)
        return evaluate(trainer, data, batch=EVALUATION_BATCH)

    def data(self, device: str, *, chosen_by: bool = False) -> LocalData:
        """The device's rows of the data set; held out are those to choose by, or to test on."""
        share, names = self._place.shares[device], self._place.class_names.get(device, ())
        share = replace(share, test=share.val) if chosen_by else share
        labelling = Labelling(len(names) or self._place.classes, names, self._place.goal)
        return rows_of(self._x, self._y, share, labelling=labelling, edges=self._edges)

    def _run_task(self, device: str, task: Task) -> Result:
        self._loaded = None
        inputs = inputs_of(task, self._path)
        free_bytes = self._place.free_bytes[device]

        def check(artifact: Artifact, recipe: Recipe) -> None:
            need = need_bytes(artifact.manifest, recipe.at_once)
            if need > free_bytes:
                raise OverBudget(need, free_bytes)

        folder = self._folder(device) if leaves_state(task) else self._place.devices / device
        small = inputs.weights.stat().st_size <= MOST_KEPT_BYTES
        tools = Tools(
            self._trainer,
            check,
            Checkpoint(folder / "checkpoint", every_s=NEVER_S),
            PersonalLayers(folder),
            meter=_NoMeter,
            read_artifact=self._unpacked,
            read_weights=self._weights if small else deltas.load,
        )
        # What devices measure in a round may decide something; rows to test on decide nothing.
        chosen_by = not task.evaluation and len(self._place.shares[device].val) > 0
        data = self.data(device, chosen_by=chosen_by)
        if device in self._place.hostile:
            data = spoil_rows(data, self._place.attack)
        return run_task(task, inputs, data, tools=tools, should_stop=lambda: False)

    def _trainer(self, artifact: Artifact, sides: Tensors, frozen: Tensors) -> Trainer:
        """A trainer for the artifact, as new; its sessions are kept for the next task of the same structure."""
        key = artifact.manifest.files["train.onnx"].sha256
        kept = self._trainers.pop(key, None)
        if kept is not None and _same(kept[1], frozen):
            trainer = kept[0]
            if sides:
                trainer.give_sides(sides)
        elif not sides and artifact.manifest.sides:
            # Evaluation reads no side inputs; zeros stand in for them.
            blank = {side.name: np.zeros(side.shape, side.dtype) for side in artifact.manifest.sides}
            trainer = PortableTrainer(artifact, sides=blank, frozen=frozen)
        else:
            # The runtime shares an array's memory, and side inputs are replaced in place.
            own = {name: np.array(value) for name, value in sides.items()}
            trainer = PortableTrainer(artifact, sides=own, frozen=frozen)
        self._trainers[key] = (trainer, frozen)
        if len(self._trainers) > KEPT_TRAINERS:
            self._trainers.popitem(last=False)
        return trainer

    def _read_artifact(self, sha256: str) -> Artifact:
        return artifacts.unpack(self._models.read(sha256))

    def _folder(self, device: str) -> Path:
        folder = self._place.devices / device
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class _NoMeter:
    """Devices that share this machine's processors say nothing about energy."""

    def joules(self) -> float | None:
        """Unknown."""
        return None


def leaves_state(task: Task) -> bool:
    """Whether a task leaves something on its device that counts once its update is used."""
    returns = task.returns
    lossy = returns.codec != "float32" or returns.keep_ratio < 1.0
    return bool(returns.personal) or task.sum is not None or lossy


def _arrays(folder: Path) -> dict[str, Array]:
    """The data set, read when touched, so that a fleet of hundreds shares one copy of it."""
    found = {"x": np.load(folder / "x.npy", mmap_mode="r"), "y": np.load(folder / "y.npy")}
    edges = folder / f"{EDGES}.npy"
    return {**found, EDGES: np.load(edges)} if edges.exists() else found


def _kept_entries(artifact: Artifact, weights: Tensors) -> Tensors:
    """Element masks of a model by its zeros, where the artifact reads any; vectors are whole."""
    names = [side.name for side in artifact.manifest.sides if side.name.startswith(MASKS)]
    masks = {name: weights[name.removeprefix(MASKS)] for name in names}
    return {name: ((value != 0) | (value.ndim < 2)).astype(np.float32) for name, value in masks.items()}


def _same(kept: Tensors, given: Tensors) -> bool:
    return kept.keys() == given.keys() and all(np.array_equal(kept[name], given[name]) for name in kept)


_workers: list[Worker] = []


def begin(place: WorkerSetup) -> None:
    """Make this process a worker; it leaves Ctrl-C to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _workers[:] = [Worker(place)]


def run_device_task(device: str, task: Task) -> Update | Refusal:
    """Do a task in a process that has begun."""
    return _workers[0].run_task(device, task)


def run_measure(job: EvaluationJob) -> Evaluation:
    """Measure a model in a process that has begun."""
    return _workers[0].measure(job)
