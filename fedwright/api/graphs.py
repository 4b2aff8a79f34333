"""A training graph by itself, without any federation: made on a host, trained wherever onnxruntime runs.

Nothing here needs torch or onnx, so that a board can load a graph and train it with the `device` extra alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact, TensorSpec
from fedwright.protocol.errors import BadArtifact, ConfigError, DataError
from fedwright.protocol.goals import CLASSIFY, GOALS
from fedwright.protocol.support.files import replace_file
from fedwright.server_runtime.artifacts.folder import read_folder, write_folder

Array = NDArray[Any]
WEIGHTS = "weights.safetensors"
# A trial run of the check that every device makes before it opens a graph.
CHECKED_BATCH = 1


@dataclass(frozen=True, repr=False)
class TrainingGraph:
    """A model as a training graph and an evaluation graph in plain ONNX, with the weights it starts from."""

    artifact: Artifact
    weights: dict[str, Array]

    def __repr__(self) -> str:
        manifest = self.artifact.manifest
        numbers = sum(array.size for array in self.weights.values())
        # Where a model of this process lies says nothing to a reader.
        what = manifest.description.removeprefix("python:fedwright.api.given:")
        return f"<TrainingGraph {what}, {manifest.goal}, {numbers:,} numbers>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.artifact.manifest.batch[0].shape[1:])

    @property
    def size_bytes(self) -> int:
        """What the two graphs take; weights are apart."""
        return len(self.artifact.train) + len(self.artifact.eval)

    def save(self, folder: str | Path) -> None:
        """Write the graphs, what they read and write, and the weights into a folder."""
        write_folder(self.artifact, Path(folder))
        replace_file(Path(folder) / WEIGHTS, tensors.save(self.weights))

    @classmethod
    def load(cls, folder: str | Path) -> "TrainingGraph":
        """Read what `save` wrote; hashes, operators and sizes are checked as a device checks them."""
        artifact = read_folder(Path(folder))
        check_artifact(artifact, batch=CHECKED_BATCH)
        try:
            data = (Path(folder) / WEIGHTS).read_bytes()
        except OSError as err:
            raise BadArtifact(f"{folder} has no {WEIGHTS}: {err.strerror}; write it with TrainingGraph.save") from err
        return cls(artifact, tensors.load(data))


class Trainer:
    """Trains one model on this machine: a call of `step` is one optimizer step.

    threads: of onnxruntime. provider: cpu, cuda or auto.
    """

    def __init__(
        self, graph: TrainingGraph, *, learning_rate: float = 0.05, threads: int = 1, provider: str = "cpu"
    ) -> None:
        if not isinstance(graph, TrainingGraph):
            raise ConfigError(f"a {type(graph).__name__} is no training graph; make one with fedwright.training_graph")
        manifest = graph.artifact.manifest
        if manifest.sides:
            raise BadArtifact(
                f"the graph also wants {manifest.sides[0].name}, which a server gives; build it without an objective"
            )
        slots = {slot.name for slot in manifest.slots if slot.role != "optimizer"}
        frozen = {spec.name: graph.weights[spec.name] for spec in manifest.frozen}
        self.learning_rate = learning_rate
        self.steps = 0
        self._graph = graph
        self._frozen = frozen
        self._trainer = PortableTrainer(graph.artifact, threads=threads, provider=provider, frozen=frozen)
        self._trainer.load({name: value for name, value in graph.weights.items() if name in slots})

    def step(self, x: ArrayLike, y: ArrayLike, *, learning_rate: float | None = None) -> float:
        """One optimizer step on a batch; the loss before it."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        result = self._trainer.step(self._batch(x, y), learning_rate=rate, seed=self.steps)
        self.steps += 1
        return result.loss

    def fit(self, x: ArrayLike, y: ArrayLike, *, epochs: int = 1, batch: int = 32, seed: int = 0) -> list[float]:
        """Passes over examples in random order; the mean loss of each."""
        images, labels = np.asarray(x), np.asarray(y)
        _check_alike(images, labels)
        rng = np.random.default_rng(seed)
        means = []
        for _ in range(epochs):
            order = rng.permutation(len(labels))
            losses = [self.step(images[rows], labels[rows]) * len(rows) for rows in _pieces(order, batch)]
            means.append(sum(losses) / len(labels))
        return means

    def predict(self, x: ArrayLike, *, batch: int = 256) -> Array:
        """What the model says of each example, as its last layer gives it (logits)."""
        images = np.asarray(x)
        if not len(images):
            raise DataError("there are no examples; give at least one")
        pieces = (self._batch(images[rows]) for rows in _pieces(np.arange(len(images)), batch))
        return np.concatenate([self._trainer.predict(piece)[0] for piece in pieces])

    def accuracy(self, x: ArrayLike, y: ArrayLike) -> float:
        """Share of the examples whose largest logit is the label's; of single classes only."""
        goal, labels = self._graph.artifact.manifest.goal, np.asarray(y)
        if goal != CLASSIFY:
            raise ConfigError(f"accuracy is of single classes but the graph is for {goal}; compare predict(x) with y")
        images = np.asarray(x)
        _check_alike(images, labels)
        return float((self.predict(images).argmax(1) == labels).mean())

    def weights(self) -> dict[str, Array]:
        """Copies of all tensors of the model as it is now."""
        return self._trainer.weights() | self._frozen

    def graph(self) -> TrainingGraph:
        """The same graph with the weights of now, to save or to go on from."""
        return TrainingGraph(self._graph.artifact, self.weights())

    def export(self, file: str | Path) -> None:
        """Write the model of now as one plain ONNX file (needs the package onnx)."""
        from fedwright.server_runtime.artifacts.standalone import export_model

        Path(file).write_bytes(export_model(self._graph.artifact, self.weights()))

    def _batch(self, *arrays: ArrayLike) -> dict[str, Array]:
        """The arrays under the names and in the types that the graph has for them."""
        specs = self._graph.artifact.manifest.batch
        batch = {spec.name: _typed(np.asarray(array), spec) for spec, array in zip(specs, arrays, strict=False)}
        if len(arrays) > 1:
            examples, labels, *_ = batch.values()
            _check_alike(examples, labels)
            self._check_classes(labels)
        return batch

    def _check_classes(self, labels: Array) -> None:
        """A class that is not there would train another one or end in a gather outside the logits."""
        manifest = self._graph.artifact.manifest
        if GOALS[manifest.goal].numbers or not labels.size or 0 <= labels.min() <= labels.max() < manifest.classes:
            return
        raise DataError(
            f"labels go from {labels.min()} to {labels.max()} but the graph has {manifest.classes} classes, "
            f"0 to {manifest.classes - 1}"
        )


def _typed(array: Array, spec: TensorSpec) -> Array:
    """In the type of the graph; fractions are no whole numbers."""
    made = array.astype(spec.dtype, copy=False)
    if made.dtype.kind in "iu" and array.dtype.kind == "f" and not np.array_equal(made, array):
        raise DataError(f"{spec.name!r} holds fractions but the graph takes whole numbers; round them, or set its task")
    return made


def _check_alike(examples: Array, labels: Array) -> None:
    if examples.ndim == 0 or labels.ndim == 0 or len(examples) != len(labels):
        raise DataError(f"x has shape {list(examples.shape)} but y {list(labels.shape)}; give one label per example")


def _pieces(rows: Array, size: int) -> Iterator[Array]:
    if size < 1:
        raise ConfigError(f"batch is {size} but must be 1 or more")
    return (rows[start : start + size] for start in range(0, len(rows), size))
