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
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import BadArtifact, DataError
from fedwright.protocol.support.files import replace_file
from fedwright.server_runtime.artifacts.folder import read_folder, write_folder

Array = NDArray[Any]
WEIGHTS = "weights.safetensors"
# A trial run of the check that every device makes before it opens a graph.
CHECKED_BATCH = 1


@dataclass(frozen=True)
class TrainingGraph:
    """A model as a training graph and an evaluation graph in plain ONNX, with the weights it starts from."""

    artifact: Artifact
    weights: dict[str, Array]

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
        if len(images) != len(labels):
            raise DataError(f"there are {len(images)} examples but {len(labels)} labels; give one for each")
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
        pieces = (self._batch(images[rows]) for rows in _pieces(np.arange(len(images)), batch))
        return np.concatenate([self._trainer.predict(piece)[0] for piece in pieces])

    def accuracy(self, x: ArrayLike, y: ArrayLike) -> float:
        """Share of the examples whose largest logit is the label's."""
        return float((self.predict(x).argmax(1) == np.asarray(y)).mean())

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
        return {spec.name: np.asarray(array, spec.dtype) for spec, array in zip(specs, arrays, strict=False)}


def _pieces(rows: Array, size: int) -> Iterator[Array]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
