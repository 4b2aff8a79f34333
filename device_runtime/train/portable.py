"""The default backend: one run() of a plain ONNX graph on the stock onnxruntime is one training step.

Where the artifact has an update.onnx, a step is one run() for each part of its batch and one of that graph.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import onnxruntime as ort

from fedwright.device_runtime.train import session as sessions
from fedwright.device_runtime.train.base import Array, StepResult, Tensors
from fedwright.device_runtime.train.check import need_bytes
from fedwright.device_runtime.train.native import RUNTIME_ERRORS
from fedwright.device_runtime.train.private import ClippedSum, StepPrivacy
from fedwright.protocol.artifact import (
    EDGES,
    EVAL,
    SHARE,
    TRAIN,
    UPDATE,
    Artifact,
    GraphFile,
    Slot,
    TensorSpec,
    train_reads,
    train_writes,
    update_writes,
)
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.private_graph import ROW_WEIGHT

# Apart enough that no step of a task has a seed twice.
PART_SEEDS = 0x3779B97F
MOST_SEED = 2**31


class PortableTrainer:
    """Trainer on two sets of slots that take turns as input and output of the training graph."""

    def __init__(
        self,
        artifact: Artifact,
        *,
        threads: int = 1,
        provider: str = "cpu",
        sides: Tensors | None = None,
        frozen: Tensors | None = None,
        interrupt: sessions.RunInterrupt | None = None,
    ) -> None:
        self.manifest = artifact.manifest
        self._artifact = artifact
        self._threads = threads
        self._run_options = (interrupt or sessions.RunInterrupt()).options
        self._provider = sessions.pick_provider(provider)
        self._frozen = _values(sessions.checked(frozen or {}, self.manifest.frozen, what="frozen tensors"))
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._bindings: list[ort.IOBinding] = []
        weakref.finalize(self, _close, self._sessions, self._bindings).atexit = False
        train = self._session(TRAIN)
        device = sessions.device_type(train)
        self._sides = _values(sessions.checked(sides or {}, self.manifest.sides, what="side inputs"), device)
        # An output bound to its own input buffer changes results, so every slot exists twice. Of steps in parts only
        # the buffers do: nothing reads the others after they were written.
        first = _values(_zeros(self.manifest.slots), device)
        twice = [slot for slot in self.manifest.slots if slot.role == "buffer" or not self.manifest.sums]
        self._slots = (first, first | _values(_zeros(twice), device))
        self._now = 0
        self._privacy: StepPrivacy | None = None
        self._loss = sessions.scalar_buffer(train, self.manifest.loss)
        self._metrics = {name: sessions.scalar_buffer(train, name) for name in self.manifest.metrics}
        self._bindings += [self._bind(train, self._slots[turn], self._slots[1 - turn]) for turn in range(2)]
        if self.manifest.sums:
            self._bindings.append(self._bind_update(first))

    def load(self, weights: Tensors) -> None:
        """Start from these weights with a fresh optimizer."""
        kept = [slot for slot in self.manifest.slots if slot.role != "optimizer"]
        self._fill(sessions.checked(weights, _specs(kept), what="weights"))
        self._fill(_zeros(slot for slot in self.manifest.slots if slot.role == "optimizer"))

    def hide(self, privacy: StepPrivacy | None) -> None:
        """Clip and add noise from the next step on; only a private graph can."""
        if (privacy is not None) != bool(self.manifest.noise):
            raise BadArtifact("the graph and the task do not agree on hiding samples; update the server")
        self._privacy = privacy

    def give_sides(self, sides: Tensors) -> None:
        """Replace the side inputs by others of the same shapes."""
        for name, array in sessions.checked(sides, self.manifest.sides, what="side inputs").items():
            self._sides[name].update_inplace(np.ascontiguousarray(array).reshape(array.shape))

    def step(self, batch: Tensors, *, learning_rate: float, seed: int) -> StepResult:
        """One optimizer step on a batch named as in the manifest; a step that fails leaves the slots as they were.

        Of steps in parts that holds for the trainable ones, and the next one must begin from a snapshot.
        """
        if self.manifest.sums:
            return self.step_in_parts(batch, learning_rate=learning_rate, seed=seed)
        numbers = {"learning_rate": learning_rate, "seed": seed}
        numbers |= {} if self._privacy is None else self._privacy.scalars
        alone = None
        if self._privacy is None:
            noise: Tensors = {}
        elif self.manifest.gradients:
            total = ClippedSum(self.manifest.noise, self._privacy)
            alone = self._run_each(batch, numbers, total)
            # The step itself sees no sample.
            batch, noise = {name: np.zeros_like(rows[:1]) for name, rows in batch.items()}, total.noisy()
        else:
            noise = self._privacy.step_noise(self.manifest.noise)
        result = self._run(self._bindings[self._now], batch, numbers, noise=noise)
        self._now = 1 - self._now
        return alone or result

    def step_in_parts(self, batch: Tensors, *, learning_rate: float, seed: int, part: int | None = None) -> StepResult:
        """One optimizer step on a batch of which at most `part` samples (None: all) are in memory together."""
        if not self.manifest.sums or (part is not None and EDGES in batch):
            raise BadArtifact("the task wants steps in parts but its graph takes none; update the server")
        found = StepResult(0.0, 0)
        for index, (rows, share) in enumerate(parts_of(len(batch[self.manifest.batch[0].name]), part)):
            piece = {name: values[rows] for name, values in batch.items()} if share < 1 else batch
            numbers = {SHARE: share, "seed": (seed + index * PART_SEEDS) % MOST_SEED}
            one = self._run(self._bindings[self._now], piece, numbers, noise={})
            self._now = 1 - self._now
            found = StepResult(found.loss + share * one.loss, found.correct + one.correct)
        update = self._bindings[2]
        for spec in self._scalars(UPDATE):
            update.bind_cpu_input(spec.name, _scalar(spec, learning_rate=learning_rate))
        try:
            self._session(UPDATE).run_with_iobinding(update, self._run_options)
        except RUNTIME_ERRORS as err:
            raise sessions.failure("update", err, need_bytes=self._need_bytes(batch)) from err
        return found

    def _scalars(self, graph: str) -> list[TensorSpec]:
        """The numbers that a graph takes; the learning rate is the update's where there is one."""
        updates = {"learning_rate"} if self.manifest.sums else set()
        return [spec for spec in self.manifest.scalars if (spec.name in updates) == (graph == UPDATE)]

    def _run(
        self, binding: ort.IOBinding, batch: Tensors, numbers: Mapping[str, float], *, noise: Tensors
    ) -> StepResult:
        """Run the training graph on what is bound and these."""
        for spec in self.manifest.batch:
            binding.bind_cpu_input(spec.name, sessions.batch_array(batch, spec))
        for spec in self._scalars(TRAIN):
            binding.bind_cpu_input(spec.name, _scalar(spec, **numbers))
        for name, value in noise.items():
            binding.bind_cpu_input(name, value)
        try:
            self._session(TRAIN).run_with_iobinding(binding, self._run_options)
        except RUNTIME_ERRORS as err:
            raise sessions.failure("training step", err, need_bytes=self._need_bytes(batch)) from err
        correct = self._metrics.get("correct")
        return StepResult(
            loss=float(self._loss.numpy().item()), correct=0 if correct is None else int(correct.numpy().item())
        )

    def _run_each(self, batch: Tensors, numbers: Mapping[str, float], total: ClippedSum) -> StepResult:
        """Add the gradient of every sample that counts, each run by itself; the mean loss, and how many were right."""
        binding = self._session(TRAIN).io_binding()
        for name in self.manifest.gradients:
            binding.bind_output(name, "cpu")
        self._bind_kept(binding, self._slots[self._now])
        noise = {spec.name: np.zeros(spec.shape, np.float32) for spec in self.manifest.noise}
        found = []
        for row in np.flatnonzero(batch[ROW_WEIGHT]):
            sample = {name: rows[row : row + 1] for name, rows in batch.items()}
            # A number that came of the sample's place in the lot would let the others move its gradient.
            found.append(self._run(binding, sample, {**numbers, "seed": total.seed()}, noise=noise))
            total.add(binding.copy_outputs_to_cpu()[: len(self.manifest.gradients)])
        return StepResult(
            loss=sum(one.loss for one in found) / max(1, len(found)), correct=sum(one.correct for one in found)
        )

    def predict(self, batch: Tensors) -> tuple[Array, Array]:
        """Logits and embedding in evaluation mode."""
        session = self._session(EVAL)
        binding = session.io_binding()
        for spec in self.manifest.batch:
            if spec.name in self.manifest.eval_batch:
                binding.bind_cpu_input(spec.name, sessions.batch_array(batch, spec))
        for name in self.manifest.eval_slots:
            binding.bind_ortvalue_input(name, self._slots[self._now][name])
        binding.bind_output(self.manifest.logits, "cpu")
        binding.bind_output(self.manifest.embedding, "cpu")
        try:
            session.run_with_iobinding(binding, self._run_options)
        except RUNTIME_ERRORS as err:
            raise sessions.failure("evaluation", err, need_bytes=self._need_bytes(batch)) from err
        logits, embedding = binding.copy_outputs_to_cpu()
        return logits, embedding

    def weights(self) -> Tensors:
        """Copies of the trainable and buffer slots."""
        return self._read(slot for slot in self.manifest.slots if slot.role != "optimizer")

    def snapshot(self) -> Tensors:
        """Copies of all slots."""
        return self._read(self.manifest.slots)

    def restore(self, slots: Tensors) -> None:
        """Continue from a snapshot."""
        self._fill(sessions.checked(slots, _specs(self.manifest.slots), what="checkpoint"))

    def end_trace(self) -> str:
        """Close the trace of a trainer that was made inside `sessions.traced`; the path of its file."""
        return str(self._session(TRAIN).end_profiling())

    def _session(self, name: GraphFile) -> ort.InferenceSession:
        """The session of a graph, made when first asked for: a task that does not evaluate never loads eval.onnx."""
        if name not in self._sessions:
            graph, frozen = self._artifact.graphs[name], {} if name == UPDATE else self._frozen
            self._sessions[name] = sessions.open_session(
                graph, what=name, threads=self._threads, provider=self._provider, frozen=frozen
            )
        return self._sessions[name]

    def _need_bytes(self, batch: Tensors) -> int:
        return need_bytes(self.manifest, len(batch[self.manifest.batch[0].name]))

    def _bind(
        self, session: ort.InferenceSession, read: dict[str, ort.OrtValue], write: dict[str, ort.OrtValue]
    ) -> ort.IOBinding:
        """Everything that stays where it is between steps, bound once."""
        binding = session.io_binding()
        self._bind_kept(binding, read)
        for slot in train_writes(self.manifest):
            binding.bind_ortvalue_output(slot.output, write[slot.name])
        return binding

    def _bind_update(self, slots: dict[str, ort.OrtValue]) -> ort.IOBinding:
        """Every slot of the update in the place of its old value."""
        binding = self._session(UPDATE).io_binding()
        for slot in update_writes(self.manifest):
            binding.bind_ortvalue_input(slot.name, slots[slot.name])
            binding.bind_ortvalue_output(slot.output, slots[slot.name])
        return binding

    def _bind_kept(self, binding: ort.IOBinding, read: dict[str, ort.OrtValue]) -> None:
        """Side inputs, slots that are read, and the numbers that are told."""
        for name in [*self._sides, *(slot.name for slot in train_reads(self.manifest))]:
            binding.bind_ortvalue_input(name, self._sides.get(name) or read[name])
        for name, value in {self.manifest.loss: self._loss, **self._metrics}.items():
            binding.bind_ortvalue_output(name, value)

    def _fill(self, tensors: Tensors) -> None:
        for name, array in tensors.items():
            self._slots[self._now][name].update_inplace(np.ascontiguousarray(array).reshape(array.shape))

    def _read(self, slots: Iterable[Slot]) -> Tensors:
        return {slot.name: np.array(self._slots[self._now][slot.name].numpy()) for slot in slots}


def parts_of(samples: int, part: int | None) -> Iterator[tuple[slice, float]]:
    """Rows of the parts of a batch, as even as can be, and their share of it."""
    count = 1 if part is None else -(-samples // part)
    ends = [samples * index // count for index in range(count + 1)]
    for start, end in pairwise(ends):
        yield slice(start, end), (end - start) / samples


def _close(opened: dict[str, ort.InferenceSession], bindings: list[ort.IOBinding]) -> None:
    """When a trainer is gone: first its sessions, which keep small things all over the arena, then the arena's rest."""
    bindings.clear()
    opened.clear()
    sessions.release_memory()


def _values(tensors: Tensors, device: str = "cpu") -> dict[str, ort.OrtValue]:
    # Contiguous because an OrtValue on the CPU shares the array's memory.
    return {
        name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape), device, 0)
        for name, array in tensors.items()
    }


def _specs(slots: Iterable[Slot]) -> list[TensorSpec]:
    return [TensorSpec(slot.name, slot.shape, slot.dtype) for slot in slots]


def _zeros(slots: Iterable[Slot]) -> Tensors:
    return {slot.name: np.zeros(slot.shape, slot.dtype) for slot in slots}


def _scalar(spec: TensorSpec, **values: float) -> Array:
    # An array even for one number: onnxruntime refuses numpy scalars.
    if spec.name not in values:
        raise BadArtifact(f"scalar input {spec.name!r} is unknown; this release gives {sorted(values)}")
    return np.full(spec.shape, values[spec.name], spec.dtype)
