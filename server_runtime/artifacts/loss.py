"""Puts the terms that an objective asks for together into one scalar."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedwright.protocol.errors import BuildError
from fedwright.protocol.goals import CLASSIFY, GOALS, MULTILABEL
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts import objectives
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Shape, Value
from fedwright.server_runtime.artifacts.export import Forward, export
from fedwright.server_runtime.artifacts.own_loss import append_own_loss
from fedwright.server_runtime.spec import ModelSpec, Structure

LABELS = "y"
_ABOUT_CLASSES = ("prototypes", "distill", "match_logits", "masked_classes", "exit_distill", "correlate")


@dataclass
class Loss:
    """The loss and how many were right, with the batch and side inputs that they read.

    logits, labels: the rows that cross-entropy is taken of.
    """

    value: str
    correct: str | None
    batch: list[str]
    sides: list[str] = field(default_factory=list)
    logits: str = ""
    labels: str = ""


def append_loss(graph: Graph, forward: Forward, structure: Structure, trained: list[str]) -> Loss:
    """Append every term of the structure's objective; the side inputs are those that the terms declared."""
    objective, classes = structure.objective, structure.spec.classes
    _check(forward, structure)
    goal = GOALS[structure.spec.goal]
    outputs = [_classes_last(graph, name) if goal.first else name for name in forward.logits]
    sides_from = len(graph.inputs)
    batch = [value.name for value in forward.inputs]
    labels = _add_labels(graph, structure.spec, outputs[-1])
    logits = [objectives.rows_of(graph, name, classes) for name in outputs]
    if objective.masked_classes:
        logits = [objectives.masked_classes(graph, name) for name in logits]
    terms: list[tuple[float, str]] = []
    if objective.cross_entropy:
        fit = _fit(graph, structure, logits, labels) if not structure.spec.loss else _own(graph, structure, forward)
        terms.append((objective.cross_entropy, fit))
    if objective.proximal:
        terms.append((objective.proximal, objectives.proximal(graph, trained)))
    if objective.prototypes:
        terms.append((objective.prototypes, objectives.prototypes(graph, forward.embedding, labels, classes)))
    if objective.distill and objective.teacher is not None:
        teacher = _append_teacher(graph, forward, objective.teacher, classes)
        kl = objectives.divergence(graph, teacher, logits[-1], objective.distill_temperature)
        terms.append((objective.distill, kl))
    if objective.match_logits:
        terms.append((objective.match_logits, objectives.match_logits(graph, logits[-1], classes)))
    if objective.correlate:
        apart = objectives.correlate(graph, logits[-1], classes, apart=objective.correlate_apart)
        terms.append((objective.correlate, apart))
    if objective.linear:
        terms.append((1.0, objectives.linear(graph, trained)))
    value = _weighted_sum(graph, terms)
    correct = None if goal.numbers else objectives.correct(graph, logits[-1], labels)
    own = [value.name for value in graph.inputs[sides_from:]]
    batch += [name for name in (LABELS, objectives.TARGET_LOGITS) if name in own]
    threshold = [objectives.THRESHOLD] if objective.fiarse else []
    return Loss(value, correct, batch, [*threshold, *(n for n in own if n not in batch)], logits[-1], labels)


def _check(forward: Forward, structure: Structure) -> None:
    objective, model = structure.objective, structure.spec.model
    if objective.exits and len(forward.logits) == 1:
        raise BuildError(
            f"{model} returns one set of logits but exits is true; a multi-exit objective needs a model with several"
        )
    if objective.distill and objective.teacher is None:
        raise BuildError(f"the objective of {model} distils but names no teacher; set its teacher")
    if not any(
        [objective.cross_entropy, objective.match_logits, objective.distill, objective.prototypes, objective.correlate]
    ):
        raise BuildError(f"the objective of {model} has no term that depends on the data; give one a weight")
    _check_goal(structure)
    for name in forward.logits:
        _check_shape(forward.graph.shape(name), structure)


def _add_labels(graph: Graph, spec: ModelSpec, outputs: str) -> str:
    """The input of labels, one per row of the outputs."""
    shape = graph.shape(outputs)
    if GOALS[spec.goal].numbers:
        return graph.add_input(Value(LABELS, (-1, spec.classes)))
    labels = graph.add_input(Value(LABELS, shape[:-1], np.dtype(np.int64)))
    return labels if len(shape) == 2 else graph.op("Reshape", labels, graph.ints(-1))


def _check_goal(structure: Structure) -> None:
    """Terms about classes are for single classes alone."""
    objective, goal = structure.objective, structure.spec.goal
    terms = {name: getattr(objective, name) for name in _ABOUT_CLASSES}
    used = [name for name, value in terms.items() if value]
    if goal != CLASSIFY and used:
        raise BuildError(
            f"the method's {used[0]} is about single classes, but the run's task is {goal}; choose a method that "
            "averages weights, such as fedavg"
        )


def _check_shape(shape: Shape, structure: Structure) -> None:
    spec, goal = structure.spec, GOALS[structure.spec.goal]
    fits = len(shape) > 1 and shape[1 if goal.first else -1] == spec.classes
    if spec.loss and goal.numbers:
        # What it makes of them is its own affair: means and spreads, or quantiles.
        return
    if goal.everywhere and len(shape) < 3:
        raise BuildError(f"{spec.model} returns {shape} but {goal.name} needs classes at every place; return them all")
    if goal.numbers and len(shape) != 2:
        raise BuildError(f"{spec.model} returns {shape} but {goal.name} needs [samples, {spec.classes}]; flatten it")
    if not fits:
        what = "targets" if goal.numbers else "classes"
        raise BuildError(f"{spec.model} returns logits of shape {shape} but there are {spec.classes} {what}")


def _classes_last(graph: Graph, logits: str) -> str:
    """[samples, classes, places...] with the classes on the last axis."""
    shape = graph.shape(logits)
    perm = [0, *range(2, len(shape)), 1]
    return graph.op("Transpose", logits, perm=perm, shape=tuple(shape[axis] for axis in perm))


def _fit(graph: Graph, structure: Structure, logits: list[str], labels: str) -> str:
    """The term that compares outputs with labels."""
    goal = GOALS[structure.spec.goal]

    def fit(outputs: str) -> str:
        if goal.name == MULTILABEL:
            return objectives.binary_cross_entropy(graph, outputs, labels)
        if goal.numbers:
            return objectives.squared_error(graph, outputs, labels)
        return objectives.cross_entropy(graph, outputs, labels)

    return _over_exits(graph, structure, logits, fit)


def _own(graph: Graph, structure: Structure, forward: Forward) -> str:
    """The user's own term, which reads outputs and labels as they are."""

    def fit(outputs: str) -> str:
        return append_own_loss(graph, structure.spec.loss, outputs, LABELS)

    return _over_exits(graph, structure, list(forward.logits), fit)


def _over_exits(graph: Graph, structure: Structure, outputs: list[str], fit: Callable[[str], str]) -> str:
    objective = structure.objective
    if not objective.exits:
        return fit(outputs[-1])
    distill, temperature = objective.exit_distill, objective.exit_temperature
    return objectives.exits(graph, outputs, fit, distill=distill, temperature=temperature)


def _append_teacher(graph: Graph, student: Forward, spec: ModelSpec, classes: int) -> str:
    """The teacher's logits: its evaluation graph inside this one, its weights as side inputs."""
    teacher = export(zoo.create(spec, seed=0), spec, training=False)
    if [v.name for v in teacher.inputs] != [v.name for v in student.inputs]:
        raise BuildError(f"teacher {spec.model} does not read the same inputs as the student; choose another")
    same = {value.name: value.name for value in teacher.inputs}
    for name in [*teacher.parameters, *teacher.buffers]:
        same[name] = graph.add_input(Value(f"teacher/{name}", teacher.graph.shape(name)))
    names = graph.merge(teacher.graph, "teacher:", same)
    return objectives.rows_of(graph, names[teacher.logits[-1]], classes)


def _weighted_sum(graph: Graph, terms: list[tuple[float, str]]) -> str:
    scaled = [term if w == 1.0 else graph.op("Mul", term, graph.scalar(w)) for w, term in terms]
    return scaled[0] if len(scaled) == 1 else graph.op("Sum", *scaled)
