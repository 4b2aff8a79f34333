"""Puts the terms that an objective asks for together into one scalar."""

from dataclasses import dataclass, field

import numpy as np

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts import objectives
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.export import Forward, export
from fedwright.server_runtime.spec import ModelSpec, Structure

LABELS = "y"


@dataclass
class Loss:
    """The loss and how many were right, with the batch and side inputs that they read.

    logits, labels: the rows that cross-entropy is taken of.
    """

    value: str
    correct: str
    batch: list[str]
    sides: list[str] = field(default_factory=list)
    logits: str = ""
    labels: str = ""


def append_loss(graph: Graph, forward: Forward, structure: Structure, trained: list[str]) -> Loss:
    """Append every term of the structure's objective; the side inputs are those that the terms declared."""
    objective, classes = structure.objective, structure.spec.classes
    _check(forward, structure)
    sides_from = len(graph.inputs)
    batch = [value.name for value in forward.inputs]
    per_label = graph.shape(forward.logits[-1])[1:-1]
    labels = graph.add_input(Value(LABELS, (-1, *per_label), np.dtype(np.int64)))
    if per_label:
        labels = graph.op("Reshape", labels, graph.ints(-1))
    logits = [objectives.rows_of(graph, name, classes) for name in forward.logits]
    if objective.masked_classes:
        logits = [objectives.masked_classes(graph, name) for name in logits]
    terms: list[tuple[float, str]] = []
    if objective.cross_entropy:
        terms.append((objective.cross_entropy, _classify(graph, structure, logits, labels)))
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
    correct = objectives.correct(graph, logits[-1], labels)
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
    for name in forward.logits:
        if forward.graph.shape(name)[-1] != structure.spec.classes:
            found = forward.graph.shape(name)
            raise BuildError(f"{model} returns logits of shape {found} but there are {structure.spec.classes} classes")


def _classify(graph: Graph, structure: Structure, logits: list[str], labels: str) -> str:
    objective = structure.objective
    if objective.exits:
        return objectives.exits(
            graph, logits, labels, distill=objective.exit_distill, temperature=objective.exit_temperature
        )
    return objectives.cross_entropy(graph, logits[-1], labels)


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
