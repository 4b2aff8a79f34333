"""Training, evaluation and class means over local data, whichever backend is underneath."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data.graph import inner_edges
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.train.base import Array, Predicts, StepResult, Tensors, Trainer
from fedwright.device_runtime.train.measures import Measures
from fedwright.device_runtime.train.private import Lots
from fedwright.protocol.artifact import EDGES
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.goals import CLASSIFY, GOALS
from fedwright.protocol.messages import Recipe
from fedwright.protocol.private_graph import ROW_WEIGHT

# Names of the batch inputs of every artifact.
INPUT = "x"
LABEL = "y"

EVALUATION_BATCH = 32
# Going forward keeps only what the next operator reads, so it can take so many times the batch of a training step.
FORWARD_TIMES = 4


@dataclass(frozen=True)
class TrainResult:
    """What a training run did from its first step on; `finished` is False when it was told to stop early."""

    steps: int
    samples: int
    train_s: float
    cpu_s: float
    loss_first: float | None
    loss_last: float | None
    finished: bool


class Span(NamedTuple):
    """From which step on; what is left over at the end of an epoch is left out of it when it is below least_batch.

    lots: draw the samples of every step by itself, in place of epochs.
    """

    start_step: int = 0
    least_batch: int = 1
    lots: Lots | None = None


WHOLE = Span()


Rows = NDArray[np.int64] | slice


class Evaluation(NamedTuple):
    """How many of `n` samples were classified right, their mean loss, and by what another goal is judged."""

    correct: int
    n: int
    loss: float
    measures: Mapping[str, float] | None = None


def total_steps(recipe: Recipe, samples: int) -> int:
    """How many steps a recipe asks for on this many samples."""
    if recipe.steps is not None:
        return recipe.steps if samples else 0
    return recipe.epochs * _steps_per_epoch(samples, recipe.batch)


def epoch_order(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """The order in which one epoch visits the samples."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def step_seed(seed: int, step: int) -> int:
    """The number a graph that draws at random (dropout) gets for one step; below 2^31."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0] >> 1)


def train(
    trainer: Trainer,
    data: LocalData,
    recipe: Recipe,
    *,
    on_step: Callable[[int, StepResult], None] | None = None,
    span: Span = WHOLE,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Run the recipe to its end; `on_step` gets the number of steps done so far."""
    left, start_step = len(data.y) % recipe.batch, span.start_step
    taken = len(data.y) - (left if left < span.least_batch else 0)
    end = total_steps(recipe, taken)
    first: float | None = None
    last: float | None = None
    wall, cpu = time.monotonic(), time.process_time()
    step, take_step = start_step, _taking_steps(trainer, recipe)
    for rows, weights in _steps(span.lots, recipe, len(data.y), range(start_step, end), taken=taken):
        if should_stop():
            break
        seed = step_seed(recipe.seed, step) if span.lots is None else span.lots.seed()
        result = take_step(batch_of(data, rows) | weights, learning_rate=recipe.learning_rate, seed=seed)
        step += 1
        first, last = (result.loss if first is None else first), result.loss
        if on_step is not None:
            on_step(step, result)
    return TrainResult(
        steps=step - start_step,
        samples=len(data.y),
        train_s=time.monotonic() - wall,
        cpu_s=time.process_time() - cpu,
        loss_first=first,
        loss_last=last,
        finished=step >= end,
    )


def _taking_steps(trainer: Trainer, recipe: Recipe) -> Callable[..., StepResult]:
    """The trainer's steps, in parts where the recipe says so."""
    if recipe.part is None:
        return trainer.step
    in_parts = getattr(trainer, "step_in_parts", None)
    if in_parts is None:
        raise BadArtifact("this device's runtime takes no steps in parts; use the portable backend")
    return partial(in_parts, part=recipe.part)


def batch_of(data: LocalData, rows: Rows) -> Tensors:
    """Training samples by the names of a graph's inputs."""
    return _inputs(data, rows) | {LABEL: data.y[rows]} | {name: values[rows] for name, values in data.extra.items()}


def _inputs(data: LocalData, rows: Rows) -> Tensors:
    """What a model reads of training samples; of nodes also the edges between these."""
    if data.edges is None:
        return {INPUT: data.x[rows]}
    return {INPUT: data.x[rows], EDGES: inner_edges(data.edges, np.arange(len(data.y))[rows])}


def forward_nodes(data: LocalData) -> int:
    """How many samples go forward at once because they hang together; 0 where they do not."""
    return 0 if data.edges is None else len(data.y) + len(data.y_holdout)


def evaluation_batch(recipe: Recipe) -> int:
    """How many samples at a time a device looks at that trains at this batch size."""
    return min(EVALUATION_BATCH, FORWARD_TIMES * recipe.at_once)


def evaluate(trainer: Predicts, data: LocalData, *, batch: int = EVALUATION_BATCH) -> Evaluation:
    """Accuracy and mean cross-entropy on the held-out part, or what the goal of the data is judged by."""
    if data.goal != CLASSIFY:
        return _judge(trainer, data, batch)
    correct, loss = 0, 0.0
    for labels, logits in _held_out(trainer, data, batch):
        correct += int((logits.argmax(axis=1) == labels).sum())
        loss += float(_cross_entropy(logits, labels).sum())
    n = len(data.y_holdout)
    return Evaluation(correct=correct, n=n, loss=loss / n if n else 0.0)


def _held_out(trainer: Predicts, data: LocalData, batch: int) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Labels and logits of the held-out part; nodes are predicted with all others around them."""
    if data.edges is not None and len(data.y_holdout):
        nodes = np.concatenate([data.x, data.x_holdout])
        yield data.y_holdout, trainer.predict({INPUT: nodes, EDGES: data.edges})[0][len(data.y) :]
        return
    for start in range(0, len(data.y_holdout), batch):
        rows = slice(start, start + batch)
        yield data.y_holdout[rows], trainer.predict({INPUT: data.x_holdout[rows]})[0]


def _judge(trainer: Predicts, data: LocalData, batch: int) -> Evaluation:
    measures, n = Measures(GOALS[data.goal]), len(data.y_holdout)
    for labels, outputs in _held_out(trainer, data, batch):
        measures.add(outputs, labels)
    loss, figures = measures.figures()
    return Evaluation(correct=0, n=n, loss=loss, measures=figures)


def logits_of(trainer: Predicts, data: LocalData, *, batch: int = EVALUATION_BATCH) -> Array:
    """Logits [rows, classes] of the training part in evaluation mode."""
    parts = [slice(start, start + batch) for start in range(0, len(data.y), batch)]
    made = [trainer.predict(_inputs(data, rows))[0] for rows in parts]
    return np.concatenate(made)


def class_means(
    trainer: Predicts, data: LocalData, *, batch: int = EVALUATION_BATCH
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Mean embedding per class over the training part [classes, dim] (zero where a class is absent), and counts."""
    sums: NDArray[np.float64] | None = None
    # A device may know fewer classes than the model has.
    classes = data.classes
    batch = forward_nodes(data) or batch
    for start in range(0, len(data.y), batch):
        rows = slice(start, start + batch)
        logits, embedding = trainer.predict(_inputs(data, rows))
        flat = embedding.reshape(len(embedding), -1).astype(np.float64)
        if sums is None:
            classes = max(classes, logits.shape[-1])
            sums = np.zeros((classes, flat.shape[1]))
        np.add.at(sums, data.y[rows], flat)
    counts = np.bincount(data.y, minlength=classes).astype(np.int64)
    if sums is None:
        return np.zeros((classes, 0), np.float32), counts
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts


def _steps_per_epoch(samples: int, batch: int) -> int:
    return -(-samples // batch)


def _steps(
    lots: Lots | None, recipe: Recipe, samples: int, steps: range, *, taken: int
) -> Iterator[tuple[NDArray[np.int64], Tensors]]:
    """Rows of each step, and their weights where they are drawn by lot."""
    if lots is None:
        for rows in _batches(recipe, samples, steps, taken=taken):
            yield rows, {}
        return
    for _ in steps:
        rows, weights = lots.draw()
        yield rows, {ROW_WEIGHT: weights}


def _batches(recipe: Recipe, samples: int, steps: range, *, taken: int) -> Iterator[NDArray[np.int64]]:
    """Rows of each batch, of which the last of an epoch may be smaller; taken: samples of an epoch."""
    per_epoch = _steps_per_epoch(taken, recipe.batch)
    epoch, order = -1, np.empty(0, np.int64)
    for step in steps:
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            order = epoch_order(recipe.seed, epoch, samples)[:taken]
        start = (step % per_epoch) * recipe.batch
        yield order[start : start + recipe.batch]


def _cross_entropy(logits: Array, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Per-sample −log softmax(logits)[label], in float64."""
    shifted: NDArray[np.float64] = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    total: NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=1))
    return total - shifted[np.arange(len(labels)), labels]
