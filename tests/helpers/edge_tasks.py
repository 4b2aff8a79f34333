"""The tasks of an edge with a clock of its own, over a store that outlives it."""

from pathlib import Path
from typing import Any

import numpy as np

from fedwright.protocol import codec, deltas, tensors
from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.messages import Ack, Pool, Recipe, Refusal, Stats, Task, Update
from fedwright.server_runtime.edge.pooled_update import Plain
from fedwright.server_runtime.edge.store import EdgeStore, TaskRow
from fedwright.server_runtime.edge.task_rows import TaskRows
from fedwright.server_runtime.methods.base import Assignment, Emission
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.pooled_tasks import PoolTerms, with_pools
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.spec import Structure
from helpers.fleet import SPEC, TinyBuilder, setting
from helpers.present import present
from helpers.tiny_artifact import make_artifact, start_weights

DEADLINE_S = 100.0


class EdgeTasks:
    """Tasks of some devices."""

    def __init__(
        self,
        folder: Path,
        devices: tuple[str, str, str] = ("a", "b", "c"),
        *,
        grouping: Any = None,
        edges: dict[str, str] | None = None,
    ) -> None:
        self.now_s = 1000.0
        self.grouping = grouping or Plain()
        self.edges = edges or {}
        self.folder = folder
        self.blobs = BlobStore(folder / "blobs")
        self.devices = devices
        self.reopen()

    def reopen(self) -> None:
        """As a process that starts again would."""
        if hasattr(self, "store"):
            self.store.close()
        self.store: EdgeStore = EdgeStore(self.folder / "edge.sqlite")
        self.rows = TaskRows("edge", self.store, self.blobs, grouping=self.grouping, clock=lambda: self.now_s)

    def plan(self, number: int = 1, *, identity: str = "") -> dict[str, Task]:
        """The tasks of a round, one pool."""
        planner = Planner("run", TinyBuilder(), self.blobs, DEADLINE_S, identity=identity)
        recipe = Recipe(batch=8, learning_rate=0.1, seed=1)
        assignments = {device: Assignment(Structure(SPEC), recipe) for device in self.devices}
        emissions = dict.fromkeys(self.devices, Emission(start_weights()))
        position = Position(number, 0)
        plan = planner.plan(position, assignments, emissions)
        method = FedAvg(FedAvgParams(), setting())
        terms = PoolTerms(class_means=bool(self.edges))
        plan = with_pools(plan, method, lambda d: self.edges.get(d, "edge"), position=position, terms=terms)
        return {planned.device: planned.task for planned in plan}

    def planned(self, *, most_samples: dict[str, int | None], norm_factor: float) -> dict[str, Pool]:
        """The pools that tasks of these assignments get."""
        planner = Planner("run", TinyBuilder(), self.blobs, DEADLINE_S)
        recipe = Recipe(batch=8, learning_rate=0.1, seed=1)
        assignments = {
            device: Assignment(Structure(SPEC), recipe, most_samples=most) for device, most in most_samples.items()
        }
        position = Position(1, 0)
        plan = planner.plan(position, assignments, dict.fromkeys(assignments, Emission(start_weights())))
        terms = PoolTerms(norm_factor=norm_factor)
        method = FedAvg(FedAvgParams(), setting())
        plan = with_pools(plan, method, lambda device: "edge", position=position, terms=terms)
        return {planned.device: planned.task.pool for planned in plan if planned.task.pool is not None}

    def take(self, tasks: dict[str, Task]) -> None:
        """Tasks that the host sends."""
        for device, task in tasks.items():
            self.rows.take_task(device, task, codec.encode(task, sender="server", boot="s"))

    def answer(self, device: str, task: Task, value: float, *, samples: int = 10) -> TaskRow | None:
        """A device's change of every weight by `value`."""
        change = {name: np.full_like(weight, value) for name, weight in start_weights().items()}
        if task.returns.class_means:
            manifest = make_artifact().manifest
            change[CLASS_MEANS] = np.zeros((manifest.classes, manifest.embedding_size), np.float32)
            change[CLASS_COUNTS] = np.zeros(manifest.classes, np.float32)
        ref = make_ref(deltas.encode(change), inline=False)
        self.blobs.put_bytes(deltas.encode(change))
        stats = Stats(samples=samples, steps=1, train_s=1.0, cpu_s=1.0, peak_rss_bytes=1)
        return self.say(device, Update(task.task, task.round, stats, ref))

    def say(self, device: str, answer: Refusal | Update) -> TaskRow | None:
        return self.rows.take_answer(device, answer, codec.encode(answer, sender=device, boot="b"))

    def answered(self, devices: str) -> dict[str, Task]:
        """The tasks of a round, all of which these devices have answered."""
        tasks = self.plan()
        self.take({device: tasks[device] for device in devices})
        for device in devices:
            self.answer(device, tasks[device], 1.0)
        self.rows.close_pools()
        return tasks

    def ack(self, task: Task) -> list[str]:
        """The host's word that it has an answer."""
        return self.rows.take_ack(task.task, codec.encode(Ack(task.task), sender="server", boot="s"))

    def value(self, update: Update) -> float:
        """What a pooled update changes every weight by."""
        values = tensors.load(self.blobs.path(present(update.tensors).sha256))
        [value] = {round(float(entry), 5) for tensor in values.values() for entry in tensor.reshape(-1)}
        return value
