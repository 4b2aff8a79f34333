"""Turns assignments into tasks: the artifact for a structure, the blobs a device will pull, a stable task id."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from fedwright.protocol import artifact as artifacts
from fedwright.protocol import deltas, patches, tensors
from fedwright.protocol.artifact import Artifact, Manifest
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import LARGE_CHUNK_BYTES, BlobRef, Hiding, Patch, Returns, Task
from fedwright.server_runtime.methods.base import Assignment, Emission, Tensors
from fedwright.server_runtime.rounds.store.base import Planned, Position, evaluation_after
from fedwright.server_runtime.spec import Structure

Refs = dict[tuple[int, deltas.Codec], BlobRef]
Patched = dict[tuple[int, str], tuple[BlobRef, Patch] | None]
KEPT_SAME = 256


@dataclass(frozen=True)
class Patches:
    """How models travel to devices that hold an earlier one: the largest of what changed since, in this codec."""

    codec: deltas.Codec
    keep_ratio: float = 1.0


@dataclass
class _Sent:
    """What was stored for the tasks of a plan: dictionaries once, and once for every model that is held."""

    refs: Refs = field(default_factory=dict)
    patched: Patched = field(default_factory=dict)


class Builds(Protocol):
    """Where artifacts come from."""

    def build(self, structure: Structure) -> Artifact:
        """The artifact of a structure; the same bytes for the same structure."""
        ...


@dataclass
class Planner:
    """Makes tasks; each distinct structure is built once and each distinct set of weights stored once.

    codec: how weights travel to devices that send back a change; it is added to what the server has in full.
    identity: the run's own, part of every task id; empty for a run of a release that had none.
    class_names: all classes of the run, where they have names, so that devices number theirs alike.
    rollbacks: how often rounds were taken back; a round that is done again has tasks of other ids.
    hiding: how devices hide their samples from whoever sees their updates. patches: None where models come whole.
    """

    run: str
    builder: Builds
    blobs: BlobStore
    deadline_s: float
    chunk_bytes: int = LARGE_CHUNK_BYTES
    codec: deltas.Codec = "float32"
    identity: str = ""
    class_names: tuple[str, ...] = ()
    rollbacks: int = 0
    hiding: Hiding | None = None
    patches: Patches | None = None
    # A device short of memory does the same task in more time rather than a smaller one.
    slower: bool = False
    # Whether a device's agent takes steps in parts.
    takes_parts: Callable[[str], bool] = lambda device: False
    # What a device is asked to send back, of what its assignment says.
    known_to: Callable[[str, Returns], Returns] = lambda device, returns: returns
    # Builds several artifacts at a time, where it can.
    prepare: Callable[[Iterable[Structure]], None] = lambda structures: None
    # Told of every artifact that is used, by its blob's name.
    _artifacts: dict[Structure, tuple[BlobRef, Manifest]] = field(default_factory=dict)
    # The same once more for objects that were asked for lately: a structure takes long to hash. Each is kept, so that
    # its id stays its own.
    _same: dict[int, tuple[Structure, tuple[BlobRef, Manifest]]] = field(default_factory=dict)

    @property
    def run_key(self) -> str:
        """As the tasks have it."""
        return self.identity or self.run

    def manifest(self, structure: Structure) -> Manifest:
        """What the artifact of this structure reads and writes."""
        return self._artifact(structure)[1]

    def prepared(self, structures: Iterable[Structure]) -> None:
        """Have those built that are not yet, for whoever asks for one after the other."""
        new = [structure for structure in dict.fromkeys(structures) if structure not in self._artifacts]
        self.prepare(structure if self.hiding is None else replace(structure, private=True) for structure in new)

    def plan(
        self,
        position: Position,
        assignments: Mapping[str, Assignment],
        emissions: Mapping[str, Emission],
        *,
        held: Mapping[str, BlobRef] | None = None,
    ) -> list[Planned]:
        """One task per device, in the order of device ids; held: weights that devices kept of an earlier task."""
        sent, plan = _Sent(), []
        self.prepared(assignment.structure for assignment in assignments.values())
        for device, wanted in sorted(assignments.items()):
            assignment = self._known(device, wanted)
            task = self._task(position, device, assignment, emissions[device], sent.refs)
            if self.patches is not None and assignment.returns.weights != "weights" and not emissions[device].masks:
                base = (held or {}).get(device)
                task = self._patched(task, emissions[device].weights, base, sent, form=self.patches)
            plan.append(Planned(device, task, assignment))
        return plan

    def _patched(self, task: Task, model: Tensors, base: BlobRef | None, sent: _Sent, *, form: Patches) -> Task:
        """The task, its weights told as a change of those that the device holds; measuring needs all of the change."""
        key = (id(model), "" if base is None else base.sha256)
        if base is not None and key not in sent.patched:
            form = replace(form, keep_ratio=1.0) if task.evaluation else form
            sent.patched[key] = self._patch(model, base, form)
        found = sent.patched.get(key)
        weights, patch = (task.weights, None) if found is None else found
        return structs.replace(task, weights=weights, patch=patch, keeps=not task.evaluation)

    def _patch(self, model: Tensors, base: BlobRef, form: Patches) -> tuple[BlobRef, Patch] | None:
        """The weights that come of a change, and the change; None where the two are not models of one kind."""
        try:
            path = self.blobs.path(base.sha256)
        except BadBlob:
            return None
        held = deltas.load(path)[0]
        if not patches.fits(held, model):
            return None
        change = patches.change_of(held, model, codec=form.codec, keep_ratio=form.keep_ratio)
        return self._offer(patches.patched(path, change)), Patch(base.sha256, self._offer(change))

    def again(self, planned: Planned, assignment: Assignment, emission: Emission) -> Planned:
        """The same device's task in another form, under an id of its own."""
        assignment = self._known(planned.device, assignment)
        position = evaluation_after(planned.task.round) if planned.task.evaluation else Position(planned.task.round, 0)
        task = self._task(position, planned.device, assignment, emission, {})
        return Planned(planned.device, structs.replace(task, task=_again(planned)), assignment)

    def resized(self, planned: Planned, assignment: Assignment) -> Planned:
        """The same device's task with the same tensors and another recipe, returns or form, under an id of its own."""
        # The pool that it was in may go up without it.
        own = {"recipe": assignment.recipe, "returns": assignment.returns}
        artifact = self._artifact(assignment.structure)[0]
        task = structs.replace(planned.task, task=_again(planned), pool=None, artifact=artifact, **own)
        return Planned(planned.device, task, assignment)

    def afresh(self, first: Planned, last: Planned) -> Planned:
        """A device's first task of a stage once more, under an id that follows that of its last one."""
        # The pool that it was in may have gone up without it; its update comes by itself.
        return replace(first, task=structs.replace(first.task, task=_again(last), pool=None))

    def _known(self, device: str, assignment: Assignment) -> Assignment:
        returns = self.known_to(device, assignment.returns)
        return assignment if returns is assignment.returns else replace(assignment, returns=returns)

    def _task(self, position: Position, device: str, assignment: Assignment, emission: Emission, refs: Refs) -> Task:
        return Task(
            task=task_id(f"{self.run_key}\0{self.rollbacks}" if self.rollbacks else self.run_key, position, device),
            boot="unsent",
            run=self.run,
            round=position.round,
            artifact=self._artifact(assignment.structure)[0],
            weights=self._weights(
                emission, refs, codec=self.codec if assignment.returns.weights == "delta" else "float32"
            ),
            recipe=assignment.recipe,
            returns=assignment.returns,
            deadline_s=self.deadline_s,
            sides=self._store(emission.sides, refs) if emission.sides else None,
            frozen=self._store(emission.frozen, refs) if emission.frozen else None,
            public=self._store(emission.public, refs) if emission.public else None,
            run_identity=self.identity or None,
            evaluation=position.is_evaluation,
            passing=emission.passing,
            class_names=list(self.class_names),
            privacy=self.hiding,
        )

    def _weights(self, emission: Emission, refs: Refs, *, codec: deltas.Codec) -> BlobRef:
        """Whole tensors, stored once; of masked ones the values with the shorter form of their indices."""
        if emission.masks:
            return self._offer(deltas.encode(emission.weights, codec=codec, keep=emission.masks))
        return self._store(emission.weights, refs, codec=codec)

    def _store(self, values: Tensors, refs: Refs, *, codec: deltas.Codec = "float32") -> BlobRef:
        """Methods may emit one dictionary for many devices: it is serialised and hashed once."""
        key = (id(values), codec)
        if key not in refs:
            refs[key] = self._offer(tensors.save(values) if codec == "float32" else deltas.encode(values, codec=codec))
        return refs[key]

    def _artifact(self, structure: Structure) -> tuple[BlobRef, Manifest]:
        kept = self._same.get(id(structure))
        if kept is None:
            if len(self._same) >= KEPT_SAME:
                self._same.clear()
            kept = self._same[id(structure)] = (structure, self._made(structure))
        return kept[1]

    def _made(self, structure: Structure) -> tuple[BlobRef, Manifest]:
        if structure not in self._artifacts:
            built = self.builder.build(structure if self.hiding is None else replace(structure, private=True))
            self._artifacts[structure] = (self._offer(artifacts.pack(built)), built.manifest)
        return self._artifacts[structure]

    def _offer(self, data: bytes) -> BlobRef:
        return self.blobs.keep(data, chunk_bytes=self.chunk_bytes)


def _again(planned: Planned) -> str:
    return hashlib.sha256(f"{planned.task.task}\0again".encode()).hexdigest()[:32]


def task_id(run_key: str, position: Position, device: str) -> str:
    """The same id whenever the same stage of the same run is planned again."""
    return hashlib.sha256(f"{run_key}\0{position.round}\0{position.stage}\0{device}".encode()).hexdigest()[:32]
