"""The second backend: onnxruntime-training artifacts, through its native bindings and so without torch.

onnxruntime-training is discontinued and exists for x86-64 only; this backend is a cross-check of the default one.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import _pybind_state

from fedwright.device_runtime.train import session as sessions
from fedwright.device_runtime.train.base import Array, StepResult, Tensors
from fedwright.device_runtime.train.native import RUNTIME_ERRORS
from fedwright.protocol.artifact import Artifact, TensorSpec
from fedwright.protocol.classic_artifact import ClassicFiles, unpack_files
from fedwright.protocol.errors import BadArtifact, BadBlob, DeviceError

# The bindings have no types; a stock onnxruntime lacks the training half of them.
_native: Any = _pybind_state

CHECKPOINT = "classic/checkpoint"


class ClassicTrainer:
    """Trainer on onnxruntime-training's module and optimizer; evaluation runs the ordinary eval.onnx."""

    def __init__(
        self, artifact: Artifact, *, threads: int = 1, sides: Tensors | None = None, frozen: Tensors | None = None
    ) -> None:
        _check_runtime(artifact)
        self.manifest = artifact.manifest
        self._artifact = artifact
        self._threads = threads
        self._sides = sessions.checked(sides or {}, self.manifest.sides, what="side inputs")
        self._frozen = sessions.checked(frozen or {}, self.manifest.frozen, what="frozen tensors")
        self._slots = [TensorSpec(s.name, s.shape, s.dtype) for s in self.manifest.slots if s.role == "trainable"]
        self._files = unpack_files(artifact.train)
        self._engine = _Engine(self._files, self._files.checkpoint, threads=threads)
        self._check_names()
        self._eval: ort.InferenceSession | None = None

    def load(self, weights: Tensors) -> None:
        """Start from these weights with a fresh optimizer."""
        values = sessions.checked(weights, self._slots, what="weights")
        # The bindings cannot reset an optimizer; a new one starts from zero.
        self._engine = _Engine(self._files, self._files.checkpoint, threads=self._threads)
        self._engine.write(values | self._frozen)

    def step(self, batch: Tensors, *, learning_rate: float, seed: int) -> StepResult:
        """One optimizer step on a batch named as in the manifest; `seed` is unused, no classic graph draws."""
        known = self._sides | {spec.name: sessions.batch_array(batch, spec) for spec in self.manifest.batch}
        outputs = self._engine.step([known[name] for name in self._engine.inputs], learning_rate)
        correct = outputs.get("correct")
        return StepResult(
            loss=float(outputs[self.manifest.loss].item()), correct=0 if correct is None else int(correct.item())
        )

    def predict(self, batch: Tensors) -> tuple[Array, Array]:
        """Logits and embedding in evaluation mode."""
        if self._eval is None:
            frozen = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in self._frozen.items()}
            self._eval = sessions.open_session(
                self._artifact.eval, what="eval.onnx", threads=self._threads, provider=sessions.CPU, frozen=frozen
            )
        specs = [spec for spec in self.manifest.batch if spec.name in self.manifest.eval_batch]
        feed = {spec.name: sessions.batch_array(batch, spec) for spec in specs}
        feed |= self._engine.read(self.manifest.eval_slots)
        try:
            logits, embedding = self._eval.run([self.manifest.logits, self.manifest.embedding], feed)
        except RUNTIME_ERRORS as err:
            raise DeviceError(f"evaluation failed in onnxruntime: {sessions.first_line(err)}") from err
        return logits, embedding

    def weights(self) -> Tensors:
        """Copies of the trainable slots."""
        return self._engine.read([slot.name for slot in self._slots])

    def snapshot(self) -> Tensors:
        """The runtime's own checkpoint file, which holds parameters, moments and the step number."""
        return {CHECKPOINT: np.frombuffer(self._engine.save(), np.uint8)}

    def restore(self, slots: Tensors) -> None:
        """Continue from a snapshot."""
        if set(slots) != {CHECKPOINT}:
            raise BadBlob(f"checkpoint must hold {CHECKPOINT!r} alone but holds {sorted(slots)[:5]}")
        self._engine = _Engine(self._files, slots[CHECKPOINT].tobytes(), threads=self._threads)

    def _check_names(self) -> None:
        """What the files ask for must be what the manifest says."""
        declared = {spec.name for spec in [*self._slots, *self.manifest.frozen]}
        fed = {spec.name for spec in [*self.manifest.batch, *self.manifest.sides]}
        if set(self._engine.parameters) != declared or not set(self._engine.inputs) <= fed:
            raise BadArtifact("classic training files and manifest name different tensors; build the artifact again")


class _Engine:
    """The native objects of one training run."""

    def __init__(self, files: ClassicFiles, checkpoint: bytes, *, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_mem_pattern = False
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        device = _native.OrtDevice(_native.OrtDevice.cpu(), _native.OrtDevice.default_memory(), 0)
        with tempfile.TemporaryDirectory(prefix="fedwright-classic-") as name:
            paths = _write(Path(name), training=files.training, optimizer=files.optimizer, checkpoint=checkpoint)
            try:
                self._state = _native.load_checkpoint(paths["checkpoint"])
                self._module = _native.Module(paths["training"], self._state, None, device, options)
                self._optimizer = _native.Optimizer(paths["optimizer"], self._state, device, options)
            except RUNTIME_ERRORS as err:
                raise BadArtifact(
                    f"onnxruntime-training {ort.__version__} cannot load the artifact: {sessions.first_line(err)}"
                ) from err
        self.inputs: list[str] = self._module.input_names(True)
        self.outputs: list[str] = self._module.output_names(True)
        self.parameters: list[str] = self._state.parameter_names()

    def write(self, values: Tensors) -> None:
        """Set parameters by name."""
        for name, value in values.items():
            contiguous = np.ascontiguousarray(value).reshape(value.shape)
            self._state.copy_parameter_from(name, ort.OrtValue.ortvalue_from_numpy(contiguous)._ortvalue)

    def read(self, names: list[str]) -> Tensors:
        """Copies of parameters by name."""
        return {name: np.array(self._state.get_parameter(name).data.numpy()) for name in names}

    def step(self, inputs: list[Array], learning_rate: float) -> Tensors:
        """One step; the outputs by name."""
        fetches = _native.OrtValueVector()
        try:
            self._module.train_step(inputs, fetches)
            self._optimizer.set_learning_rate(learning_rate)
            self._optimizer.optimizer_step()
            self._module.lazy_reset_grad()
        except RUNTIME_ERRORS as err:
            raise DeviceError(f"training step failed in onnxruntime-training: {sessions.first_line(err)}") from err
        return {name: value.numpy() for name, value in zip(self.outputs, fetches, strict=True)}

    def save(self) -> bytes:
        """The runtime's checkpoint with the optimizer's state."""
        with tempfile.TemporaryDirectory(prefix="fedwright-classic-") as name:
            path = Path(name) / "checkpoint"
            _native.save_checkpoint(self._state, str(path), True)
            return path.read_bytes()


def _check_runtime(artifact: Artifact) -> None:
    if not hasattr(_native, "CheckpointState"):
        raise DeviceError(
            f"onnxruntime {ort.__version__} cannot train with classic artifacts; "
            f'pip install "fedwright[classic]" in a virtual environment of its own'
        )
    if artifact.manifest.backend != "classic":
        raise BadArtifact("artifact is not for the classic backend; build it with the classic generator")


def _write(folder: Path, **files: bytes) -> dict[str, str]:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: str(folder / name) for name in files}
