"""One task from its blobs to its result: check, train, evaluate, say what came out. Knows nothing of links."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import structs

from fedwright.device_runtime.data.graph import inner_edges
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.energy import EnergyMeter
from fedwright.device_runtime.guard import Guard
from fedwright.device_runtime.policy import Policy, minute_of_day
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.task_inputs import Inputs, Stopped
from fedwright.device_runtime.train.base import Array, Interrupt, StepResult, Tensors, Trainer
from fedwright.device_runtime.train.loop import (
    FORWARD_TIMES,
    INPUT,
    LABEL,
    Evaluation,
    Span,
    class_means,
    evaluate,
    evaluation_batch,
    forward_nodes,
    logits_of,
    total_steps,
    train,
)
from fedwright.device_runtime.train.private import Lots, StepPrivacy, hidden_by
from fedwright.device_runtime.train.trainer_cache import TrainerCache
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import deltas, tensors
from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS, PUBLIC_LOGITS, Artifact
from fedwright.protocol.errors import BadArtifact, BadBlob
from fedwright.protocol.messages import Recipe, Stats, Task

# Side inputs that a device makes itself, of what it was sent.
MASK, CENTRE = "mask/", "centre/"
# Side inputs that are no constants of a task: one row for each public row.
ROW_SIDES = ("target_logits",)

MakeTrainer = Callable[[Artifact, Tensors, Tensors], Trainer]
"""Makes a trainer from an artifact, its side inputs and its frozen tensors."""

CheckArtifact = Callable[[Artifact, Recipe], None]
"""Raises BadArtifact or OverBudget before a session is made."""

MeanNoise = Callable[[Array, Array, Sequence[str]], tuple[Array, Array]]
"""What leaves the device instead of class means [classes, dim] and counts [classes]; takes the run's classes."""


def unchanged_means(means: Array, counts: Array, run_names: Sequence[str]) -> tuple[Array, Array]:
    """The truth."""
    del run_names
    return means, counts


@dataclass
class StepsDone:
    """How far the training of a task is; `tell` hears of every step."""

    done: int = 0
    of: int = 0
    tell: Callable[[int, int], None] = lambda done, of: None

    def note(self, done: int, of: int) -> None:
        """So many steps are done."""
        self.done, self.of = done, of
        self.tell(done, of)


class Meter(Protocol):
    """Measures from its making on."""

    def joules(self) -> float | None:
        """Energy of what was done; None where nothing tells."""
        ...


@dataclass(frozen=True)
class Tools:
    """What a device works with, the same for every task.

    read_artifact, read_weights: what a blob holds; who does the tasks of many devices keeps it for the next one.
    """

    make_trainer: MakeTrainer
    check: CheckArtifact
    checkpoint: Checkpoint
    personal: PersonalLayers
    kept: TrainerCache = field(default_factory=TrainerCache)
    guard: Guard | None = None
    class_mean_noise: MeanNoise = unchanged_means
    policy: Policy = field(default_factory=Policy)
    interrupt: Interrupt | None = None
    steps: StepsDone = field(default_factory=StepsDone)
    meter: Callable[[], Meter] = EnergyMeter
    read_artifact: Callable[[Path], Artifact] = lambda path: artifacts.unpack(path.read_bytes())
    read_weights: Callable[[Path], tuple[Tensors, Tensors]] = deltas.load


@dataclass(frozen=True)
class Result:
    """What a task came to; `tensors` is empty when none were asked for.

    masks: for tensors that came as some of their entries, which.
    """

    tensors: Tensors
    stats: Stats
    masks: Tensors = field(default_factory=dict)


def run_task(
    task: Task,
    inputs: Inputs,
    data: LocalData,
    *,
    tools: Tools,
    should_stop: Callable[[], bool],
) -> Result:
    """Do the task; continues from the checkpoint when it belongs to this task."""
    if tools.guard is not None:
        should_stop = tools.guard.watching(should_stop)
    if should_stop():
        raise Stopped
    wall_s, cpu_s, energy = time.monotonic(), time.process_time(), tools.meter()
    data = data.numbered_as(task.class_names)
    tools.policy.check(task, minute_of_day())
    received, masks = tools.read_weights(inputs.weights)
    received = tools.personal.over(received, task.returns.personal, run=task.run_key)
    trainer = _trainer(task, inputs, tools, data=data, received=received, masks=masks)
    trainer.load(received)
    hide_samples(trainer, task)
    seen, batch = _Watched(trainer, should_stop), evaluation_batch(task.recipe)
    # What is told of single samples beside the update would have to be hidden, too.
    measures = task.returns.evaluate and not task.is_private
    before = evaluate(seen, data, batch=batch) if measures else None
    public = _public(task, inputs, data)
    own = _chosen(data if public is None or not task.recipe.public else public, task.recipe)
    tools.policy.check_samples(task.recipe, len(own.y))
    stats = _train(task, trainer, own, tools=tools, should_stop=should_stop)
    trains = total_steps(task.recipe, len(own.y)) > 0
    after = evaluate(seen, data, batch=batch) if measures and trains else before
    if task.returns.personal and trains:
        learned = trainer.weights()
        tools.personal.keep(task, {name: learned[name] for name in task.returns.personal})
    result = _returned(task, trainer, received)
    if task.returns.class_means:
        found = _enough(*class_means(seen, data, batch=batch), least=tools.policy.least_per_mean)
        means, counts = tools.class_mean_noise(*found, task.class_names)
        result |= {CLASS_MEANS: means, CLASS_COUNTS: counts.astype(np.float32)}
    if task.returns.logits and public is not None:
        result[PUBLIC_LOGITS] = logits_of(seen, public, batch=batch)
    if task.is_private:
        stats = structs.replace(stats, loss_first=None, loss_last=None)
    return Result(
        result,
        structs.replace(
            stats,
            holdout=len(data.y_holdout),
            correct_before=_correct(before),
            correct_after=_correct(after),
            measures_before=_measures(before, least=tools.policy.least_per_mean),
            measures_after=_measures(after, least=tools.policy.least_per_mean),
            cpu_s=time.process_time() - cpu_s,
            task_s=time.monotonic() - wall_s,
            energy_j=energy.joules(),
        ),
        masks,
    )


def hide_samples(trainer: Trainer, task: Task) -> None:
    """Let a trainer clip and add noise as a task says; BadArtifact where it cannot, or nobody asked."""
    hide = getattr(trainer, "hide", None)
    if hide is not None:
        hide(None if task.privacy is None else StepPrivacy(task.privacy, task.recipe.batch))
    elif task.privacy is not None:
        raise BadArtifact("this device's runtime cannot hide samples; install onnxruntime in place of the other one")


class _Watched:
    """Predictions that wait while the board may not go on, and end when the agent was told to stop."""

    def __init__(self, trainer: Trainer, should_stop: Callable[[], bool]) -> None:
        self._trainer = trainer
        self._should_stop = should_stop

    def predict(self, batch: Tensors) -> tuple[Array, Array]:
        """As the trainer's own."""
        if self._should_stop():
            raise Stopped
        return self._trainer.predict(batch)


def _public(task: Task, inputs: Inputs, data: LocalData) -> LocalData | None:
    """The rows that came with a task, without labels as class 0; sides of as many rows go with them."""
    if inputs.public is None:
        if task.recipe.public or task.returns.logits:
            raise BadBlob("the task speaks of public rows but names no blob that holds them; update the server")
        return None
    rows = _load(inputs.public)
    x = rows.get(INPUT)
    if x is None or x.shape[1:] != tuple(data.input_shape):
        found = None if x is None else list(x.shape[1:])
        raise BadBlob(f"public rows have the shape {found} but this device's data {list(data.input_shape)}")
    y = np.asarray(rows.get(LABEL, np.zeros(len(x))), np.int64)
    extra = {name: value for name, value in _load(inputs.sides).items() if name in ROW_SIDES}
    if any(len(value) != len(x) for value in (y, *extra.values())):
        raise BadBlob(f"what goes with {len(x)} public rows has another number of rows")
    # Nodes that come with a task stand alone.
    edges = None if data.edges is None else np.empty((0, 2), np.int64)
    return replace(data, x=x, y=y, extra=extra, edges=edges)


def _chosen(data: LocalData, recipe: Recipe) -> LocalData:
    """The samples that a recipe trains on."""
    if recipe.classes is None:
        return data
    rows = np.isin(data.y, recipe.classes)
    extra = {name: values[rows] for name, values in data.extra.items()}
    edges = None
    if data.edges is not None:
        held_out = len(data.y) + np.arange(len(data.y_holdout))
        edges = inner_edges(data.edges, np.concatenate([np.flatnonzero(rows), held_out]))
    return replace(data, x=data.x[rows], y=data.y[rows], extra=extra, edges=edges)


def _trainer(
    task: Task, inputs: Inputs, tools: Tools, *, data: LocalData, received: Tensors, masks: Tensors
) -> Trainer:
    """The trainer of the last round if it is of the same artifact, else a new one from a checked artifact."""
    # Side inputs and a frozen base are bound when a trainer is made, so such a trainer is of one task only.
    plain = inputs.sides is None and inputs.frozen is None and not masks
    kept = tools.kept.take(task.artifact.sha256, batch=task.recipe.at_once)
    if plain and kept is not None:
        return kept
    artifact = tools.read_artifact(inputs.artifact)
    tools.check(artifact, _largest(task.recipe, data))
    given = {name: value for name, value in _load(inputs.sides).items() if name not in ROW_SIDES}
    sides = _own_sides(artifact, received, masks) | given
    trainer = tools.make_trainer(artifact, sides, _mapped(inputs.frozen))
    if plain and not sides:
        tools.kept.put(task.artifact.sha256, trainer, batch=task.recipe.at_once, manifest=artifact.manifest)
    return trainer


def _largest(recipe: Recipe, data: LocalData) -> Recipe:
    """The recipe with the batch whose step takes as much memory as the most that is done at once."""
    forward = -(-forward_nodes(data) // FORWARD_TIMES)
    return structs.replace(recipe, batch=max(recipe.batch, forward), part=max(recipe.at_once, forward))


def _own_sides(artifact: Artifact, received: Tensors, masks: Tensors) -> Tensors:
    """Side inputs that need not be sent: the weights as they came, and masks, 1 at entries that were sent.

    A tensor that came whole has a mask of ones.
    """
    found = {}
    for side in artifact.manifest.sides:
        kind, _, name = side.name.partition("/")
        if kind + "/" == CENTRE and name in received:
            found[side.name] = received[name]
        elif kind + "/" == MASK:
            found[side.name] = masks.get(name, np.ones(side.shape, bool)).astype(np.float32)
    return found


def _train(task: Task, trainer: Trainer, data: LocalData, *, tools: Tools, should_stop: Callable[[], bool]) -> Stats:
    checkpoint, least = tools.checkpoint, 1 if task.recipe.public else tools.policy.least_batch
    start = checkpoint.load(task.task)
    if start is not None:
        trainer.restore(start.slots)
    first = None if start is None else start.loss_first

    whole = total_steps(task.recipe, len(data.y))

    def on_step(step: int, result: StepResult) -> None:
        nonlocal first
        tools.steps.note(step, whole)
        first = result.loss if first is None else first
        if checkpoint.due():
            checkpoint.save(task.task, step, first, trainer.snapshot())

    done = 0 if start is None else start.step
    lots = None if task.privacy is None else Lots(len(data.y), task.recipe.batch)
    # Left-over samples are left out of an epoch, and there are no epochs where each step draws its own.
    span = Span(done, least if lots is None else 1, lots)
    result = train(trainer, data, task.recipe, on_step=on_step, span=span, should_stop=should_stop)
    if not result.finished:
        raise Stopped
    return Stats(
        samples=len(data.y),
        steps=done + result.steps,
        train_s=result.train_s,
        train_cpu_s=result.cpu_s,
        cpu_s=0.0,
        peak_rss_bytes=0,
        loss_first=first,
        loss_last=result.loss_last,
        privacy=None if task.privacy is None else hidden_by(task.privacy, task.recipe, len(data.y), whole),
    )


def _enough(means: Array, counts: Array, *, least: int) -> tuple[Array, Array]:
    """Class means without those of so few samples that they would tell single ones; such a class counts as absent."""
    kept = counts >= least
    return np.where(kept[:, None], means, 0).astype(means.dtype), np.where(kept, counts, 0)


def _returned(task: Task, trainer: Trainer, received: Tensors) -> Tensors:
    result: Tensors = {}
    if task.returns.weights != "none":
        result = {name: value for name, value in trainer.weights().items() if name not in task.returns.personal}
    if task.returns.weights == "delta":
        result = {name: np.subtract(value, received[name]) for name, value in result.items()}
    return result


def _correct(evaluation: Evaluation | None) -> int | None:
    if evaluation is None or evaluation.n == 0 or evaluation.measures is not None:
        return None
    return evaluation.correct


def _measures(evaluation: Evaluation | None, *, least: int) -> dict[str, float] | None:
    """Mean errors, unless they are of so few samples that with a model of its choosing a server reads a target off."""
    if evaluation is None or not evaluation.measures or evaluation.n < least:
        return None
    return dict(evaluation.measures)


def _mapped(path: Path | None) -> Tensors:
    """What never changes stays on disk until it is read, and the system may take its memory back at any time."""
    return {} if path is None else tensors.map_file(path)


def _load(path: Path | None) -> Tensors:
    return {} if path is None else dict(tensors.load(path))
