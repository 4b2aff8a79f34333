"""Rounds on pieces of one graph, a piece per device: the method's own hooks, with training graphs on onnxruntime.

Devices of a simulation deal in rows, which a graph has none of; here a batch is a device's whole piece. A device trains
on the graph between its training nodes and predicts its test nodes inside its whole piece.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright import __version__
from fedwright.benchmarks.harness.generated_views import masked_model
from fedwright.benchmarks.harness.suite import Finished
from fedwright.device_runtime import facts
from fedwright.device_runtime.describe.descriptor import describe
from fedwright.device_runtime.run_task import MASK
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS
from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Emission, Method, Tensors
from fedwright.server_runtime.run import make_method
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.simulation import datasets
from fedwright.simulation.partition import Share, Split, by_metis, inner_edges
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

Array = NDArray[Any]
SPLIT = Split(val=0.0, test=0.4)
STATS = Stats(samples=1, steps=1, train_s=0.0, cpu_s=0.0, peak_rss_bytes=0)


@dataclass(frozen=True)
class Scale:
    """How much is done: devices, how many of them never train, who takes part in a round, steps of a task."""

    devices: int
    bystanders: int
    per_round: int
    steps: int
    measure_every: int


@dataclass(frozen=True)
class GraphPiece:
    """A device's part of the graph; `train` and `test` are numbers of its nodes, `inner` the edges between `train`."""

    x: Array
    y: Array
    edges: Array
    train: Array
    test: Array
    inner: Array


def cut(devices: int, *, seed: int) -> dict[str, GraphPiece]:
    """Cora in as many pieces as there are devices, with few edges between them."""
    data = datasets.load("cora")
    edges = data.extra["edges"].astype(np.int64)
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    shares = by_metis(edges, len(data.y_train), devices, rng=rng, split=SPLIT)
    return {device: _piece(data.x_train, data.y_train, edges, share) for device, share in shares.items()}


def _piece(x: Array, y: Array, edges: Array, share: Share) -> GraphPiece:
    nodes = np.concatenate([share.train, share.test])
    train, test = np.split(np.arange(len(nodes)), [len(share.train)])
    return GraphPiece(x[nodes], y[nodes], inner_edges(edges, nodes), train, test, inner_edges(edges, share.train))


def play(config: RunConfig, name: str, scale: Scale) -> Finished:
    """All rounds of a config, with every device measured every few rounds."""
    pieces = cut(scale.devices, seed=config.run.seed)
    first = next(iter(pieces.values()))
    classes = max(int(piece.y.max()) for piece in pieces.values()) + 1
    builder = Builder()
    method = make_method(
        config,
        ModelSpec(config.model.model, first.x.shape[1:], classes),
        lambda structure: builder.build(structure).manifest,
    )
    reports = {
        device: _report(piece, classes, trains=number < scale.devices - scale.bystanders)
        for number, (device, piece) in enumerate(pieces.items())
    }
    fleet = _Fleet(config, scale, pieces, builder)
    rng = np.random.default_rng(derive_seed(config.run.seed, "participants"))
    able = [device for device, report in reports.items() if report.trains]
    evaluations = []
    for number in range(1, config.run.rounds + 1):
        method.meet(reports)
        drawn = sorted(rng.choice(able, scale.per_round, replace=False).tolist())
        assignments = method.assign({device: reports[device] for device in drawn}, number)
        sent = {device: method.emit(device, assignment) for device, assignment in assignments.items()}
        for device, assignment in sorted(assignments.items()):
            tensors = fleet.train(device, assignment, sent[device])
            method.absorb(device, CheckedUpdate(tensors, STATS, assignment))
        method.advance()
        if number % scale.measure_every == 0 or number == config.run.rounds:
            evaluations.append(fleet.measure(method, number))
    return Finished(name, config.run.seed, evaluations, {}, [], {"union": fleet.union(method)})


def _report(piece: GraphPiece, classes: int, *, trains: bool) -> Report:
    counts = np.bincount(piece.y[piece.train], minlength=classes).tolist()
    shape = list(piece.x.shape[1:])
    data = DataSummary(
        len(piece.train), len(piece.test), shape, classes, counts, descriptor=describe(piece.x[piece.train])
    )
    return Report(
        agent=__version__, board=facts.board(threads=1), free_bytes=facts.free_bytes(), data=data, trains=trains
    )


class _Fleet:
    """Does tasks for any device; sessions are kept by structure."""

    def __init__(self, config: RunConfig, scale: Scale, pieces: Mapping[str, GraphPiece], builder: Builder) -> None:
        self._config, self._scale, self._pieces, self._builder = config, scale, pieces, builder
        self._trainers = lru_cache(maxsize=64)(self._make)

    def train(self, device: str, assignment: Assignment, emission: Emission) -> Tensors:
        """What a device sends back: its change, and class means where they are asked for."""
        piece, trainer = self._pieces[device], self._trainers(assignment.structure)
        trainer.give_sides({**_masks(trainer, emission.masks), **emission.sides})
        trainer.load(emission.weights)
        batch = {"x": piece.x[piece.train], "edges": piece.inner, "y": piece.y[piece.train]}
        for step in range(self._scale.steps):
            trainer.step(batch, learning_rate=assignment.recipe.learning_rate, seed=step)
        found = {name: value - emission.weights[name] for name, value in trainer.weights().items()}
        if assignment.returns.class_means:
            embedded, labels = trainer.predict(batch)[1], batch["y"]
            counts = np.bincount(labels, minlength=assignment.structure.spec.classes).astype(np.float32)
            sums = np.zeros((len(counts), embedded.shape[1]), np.float32)
            np.add.at(sums, labels, embedded)
            found |= {CLASS_MEANS: sums / np.maximum(counts, 1)[:, None], CLASS_COUNTS: counts}
        return found

    def measure(self, method: Method, number: int) -> FleetEvaluation:
        """Every device's own model on its own test nodes."""
        found = [
            DeviceAccuracy(device, self._correct(_model(method, device), [piece]), len(piece.test), 0.0)
            for device, piece in self._pieces.items()
        ]
        return FleetEvaluation(number, "test", tuple(found))

    def union(self, method: Method) -> list[float]:
        """Accuracy of the common model at each of four sizes, on the test nodes of all devices."""
        pieces = list(self._pieces.values())
        total = sum(len(piece.test) for piece in pieces)
        return [self._correct(_model(method, f"union-{level}"), pieces) / total for level in range(4)]

    def _correct(self, model: tuple[ModelSpec, Tensors], pieces: list[GraphPiece]) -> int:
        trainer = self._trainers(Structure(model[0]))
        trainer.load(model[1])
        right = 0
        for piece in pieces:
            logits, _ = trainer.predict({"x": piece.x, "edges": piece.edges})
            right += int((logits[piece.test].argmax(axis=1) == piece.y[piece.test]).sum())
        return right

    def _make(self, structure: Structure) -> PortableTrainer:
        artifact = self._builder.build(structure)
        blank = {side.name: np.zeros(side.shape, side.dtype) for side in artifact.manifest.sides}
        return PortableTrainer(artifact, sides=blank)


def _model(method: Method, device: str) -> tuple[ModelSpec, Tensors]:
    """A device's model; a masked one with its dead channels, without which it would need a graph of its own."""
    spec, weights = method.model_of(device)
    whole = masked_model(method, device)
    return (spec, weights) if whole is None else (replace(spec, sizes=()), whole)


def _masks(trainer: PortableTrainer, masks: Mapping[str, Array]) -> Tensors:
    """1 at entries that were sent, 1 everywhere for tensors that came whole."""
    names = {side.name: tuple(side.shape) for side in trainer.manifest.sides if side.name.startswith(MASK)}
    return {
        name: masks.get(name.removeprefix(MASK), np.ones(shape, bool)).astype(np.float32)
        for name, shape in names.items()
    }
