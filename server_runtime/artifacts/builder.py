"""Structure -> artifact: forward graph, loss, gradients and optimizer in train.onnx; logits and embedding in eval.onnx.

Built once per structure: kept in memory and, with a cache folder, on disk. Equal structures give equal bytes.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

import fedwright
from fedwright.protocol.artifact import FORMAT, SHARE, Artifact, Manifest, Slot, TensorSpec, pack, unpack, with_files
from fedwright.protocol.errors import BadArtifact, BuildError
from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.predictor import WORK_BATCHES
from fedwright.protocol.private_graph import CLIP, EXPECTED, NOISE, ROW_WEIGHT
from fedwright.protocol.support.plugins import PYTHON
from fedwright.protocol.support.steps import steps
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts import objectives
from fedwright.server_runtime.artifacts.autodiff.engine import differentiate
from fedwright.server_runtime.artifacts.autodiff.finish import finish
from fedwright.server_runtime.artifacts.autodiff.graph import IR_VERSION, OPSET, Graph, Value
from fedwright.server_runtime.artifacts.autodiff.recompute import recompute
from fedwright.server_runtime.artifacts.autodiff.rules.dropout import SEED
from fedwright.server_runtime.artifacts.autodiff.shapes import Seen, measure
from fedwright.server_runtime.artifacts.build_checks import check_layers, check_outputs
from fedwright.server_runtime.artifacts.compact import compact
from fedwright.server_runtime.artifacts.evaluation_graph import (
    EMBEDDING,
    LOGITS,
    Evaluation,
    evaluation_graph,
    make_external,
)
from fedwright.server_runtime.artifacts.export import Rewrite, buffer_names, export, initial_weights
from fedwright.server_runtime.artifacts.grouped_steps import make_stepper
from fedwright.server_runtime.artifacts.in_parts import Summing, check_in_place, parameter_of, update_graph
from fedwright.server_runtime.artifacts.loss import Loss, append_loss
from fedwright.server_runtime.artifacts.macs import count_macs
from fedwright.server_runtime.artifacts.memory import BATCHES as MEMORY_BATCHES
from fedwright.server_runtime.artifacts.memory import estimate
from fedwright.server_runtime.artifacts.operator_table import tabulate, tabulate_once
from fedwright.server_runtime.artifacts.optimizer import LEARNING_RATE, Updates, clip
from fedwright.server_runtime.artifacts.packed import pack_frozen, unpack_late
from fedwright.server_runtime.artifacts.private.gradients import (
    NoSingleNorms,
    check_objective,
    gradients_alone,
    private_gradients,
)
from fedwright.server_runtime.artifacts.sizes import sizes_at
from fedwright.server_runtime.engine.spread import is_elsewhere, spread
from fedwright.server_runtime.model_names import ONNX
from fedwright.server_runtime.spec import Structure

__all__ = ["Builder", "initial_weights"]

_log = logging.getLogger(__name__)

LOSS, CORRECT = "loss", "correct"


class Builder:
    """Builds artifacts and remembers them by structure; `recompute`: all of them for less memory."""

    def __init__(self, cache: Path | None = None, *, recompute: bool = False) -> None:
        self._cache = cache
        self._recompute = recompute
        self._built: dict[str, Artifact] = {}

    def build(self, structure: Structure, module: nn.Module | None = None) -> Artifact:
        """The artifact of a structure; `module` is what its spec stands for (None = ask the zoo)."""
        structure = self._whole(structure)
        key = _cache_key(structure)
        artifact = self._known(key, structure)
        if artifact is None:
            artifact = build(structure, zoo.create(structure.spec, seed=0) if module is None else module)
            self._keep(key, structure, artifact)
        self._built[key] = artifact
        return artifact

    def build_all(self, structures: Iterable[Structure], engine: Executor) -> None:
        """Build what is not known yet, where the engine can do several at a time."""
        if not is_elsewhere(engine):
            return
        wanted = {_cache_key(whole): whole for whole in map(self._whole, structures)}
        missing = {key: one for key, one in wanted.items() if self._known(key, one) is None}
        if len(missing) < 2:
            return
        for (key, structure), packed in zip(
            missing.items(), spread(engine, _packed, list(missing.values())), strict=True
        ):
            self._built[key] = unpack(packed)
            self._keep(key, structure, self._built[key])

    def _whole(self, structure: Structure) -> Structure:
        return replace(structure, recompute=True) if self._recompute and not structure.private else structure

    def _known(self, key: str, structure: Structure) -> Artifact | None:
        return self._built.get(key) or (self._read(key) if _is_lasting(structure) else None)

    def _keep(self, key: str, structure: Structure, artifact: Artifact) -> None:
        if _is_lasting(structure):
            self._write(key, artifact)

    def _read(self, key: str) -> Artifact | None:
        """An artifact from disk; one that is damaged counts as absent."""
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            return unpack(path.read_bytes())
        except BadArtifact:
            return None

    def _write(self, key: str, artifact: Artifact) -> None:
        path = self._path(key)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(pack(artifact))
        os.replace(file.name, path)

    def _path(self, key: str) -> Path | None:
        return None if self._cache is None else self._cache / f"{key}.artifact"


def _is_lasting(structure: Structure) -> bool:
    """The name of a module or file of the user's own says nothing about what is in it, which may change."""
    teacher = structure.objective.teacher
    models = [name for spec in (structure.spec, teacher) if spec is not None for name in (spec.model, spec.loss)]
    return not any(own in model for model in models for own in (PYTHON, ONNX))


def _packed(structure: Structure) -> bytes:
    return pack(build(structure, zoo.create(structure.spec, seed=0)))


def _cache_key(structure: Structure) -> str:
    """Structure and everything else that decides the bytes."""
    parts = (structure.key(), fedwright.__version__, str(FORMAT), torch.__version__)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def build(structure: Structure, module: nn.Module) -> Artifact:
    """Build an artifact, without any cache."""
    names = [name for name, _ in module.named_parameters()]
    asked = [name for name in names if name.startswith(structure.trainable)]
    check_layers(module, structure)
    if not asked:
        raise BuildError(
            f"no parameter of {structure.spec.model} starts with any of {list(structure.trainable)}; "
            f"its parameters are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        )
    with steps(f"building {structure.spec.model}", 4) as advance:
        train = _train_graph_or_alone(structure, module, asked)
        advance()
        evaluation = evaluation_graph(structure, module, train.frozen)
        # Both sessions are given the same tensors, so both graphs must know all of them.
        train.frozen = train.graph.external = evaluation.graph.external = {**train.frozen, **evaluation.graph.external}
        advance()
        train_bytes = compact(train.graph.to_model())
        eval_bytes = compact(evaluation.graph.to_model())
        update_bytes = b"" if train.update is None else compact(train.update.to_model())
        manifest = _manifest(structure, train, evaluation)
        artifact = with_files(Artifact(manifest, train_bytes, eval_bytes, update_bytes))
        advance()
        check_outputs(artifact, structure.spec.model)
    return artifact


@dataclass
class _Train:
    """A finished training graph and what the manifest says of it."""

    graph: Graph
    loss: Loss
    slots: list[Slot] = field(default_factory=list)
    frozen: dict[str, Value] = field(default_factory=dict)
    gradients: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)
    update: Graph | None = None


def _train_graph_or_alone(structure: Structure, module: nn.Module, asked: list[str]) -> _Train:
    """A private graph without norms of single samples becomes one that is given each sample by itself."""
    try:
        return _train_graph(structure, module, asked)
    except NoSingleNorms as err:
        _log.warning(
            "%s: %s, so devices take its gradients sample by sample, which is many times slower",
            structure.spec.model,
            err,
        )
        return _train_graph(structure, module, asked, alone=True)


def _train_graph(structure: Structure, module: nn.Module, asked: list[str], *, alone: bool = False) -> _Train:
    """asked: what a method would train; what the module itself keeps (requires_grad is False) travels and stays."""
    given = dict(module.named_parameters())
    trainable = [name for name in asked if given[name].requires_grad]
    if not trainable:
        raise BuildError(
            f"all that would train in {structure.spec.model}, such as {asked[0]}, has requires_grad = False; "
            "let some of it train"
        )
    frozen = frozenset(given) - frozenset(trainable)
    forward = export(module, structure.spec, training=True, frozen=frozen, rewrite=_rewrite(structure, trainable))
    graph = forward.graph
    trained = [name for name in trainable if name in forward.parameters]
    loss = append_loss(graph, forward, structure, trained)
    seen = measure(graph)
    pack_frozen(graph, frozen, structure.packing)
    before = len(graph.nodes)
    gradients: list[tuple[str, str]] = []
    if alone:
        updates, gradients = _optimize_alone(graph, structure, loss, trained)
    elif structure.private:
        updates = _optimize_privately(graph, structure, loss, trained, seen)
    else:
        updates = (_sum_up if structure.parts else _optimize)(graph, structure, loss, trained)
    if structure.recompute:
        recompute(graph, before)
    train = _Train(graph, loss, gradients=[name for name, _ in gradients])
    buffers = [n for n in buffer_names(module) if n in forward.running or n.startswith(structure.trainable)]
    shapes = {name: tuple(value.shape) for name, value in module.state_dict(keep_vars=True).items()}
    outputs = [(LOSS, loss.value)]
    if loss.correct is not None:
        outputs.append((CORRECT, loss.correct))
    for name in [*asked, *buffers]:
        if not graph.knows(name):
            graph.add_input(Value(name, shapes[name]))
        train.slots.append(_slot(name, graph, "trainable" if name in trainable else "buffer"))
        if structure.parts and name in trainable:
            continue
        new = updates.parameters.get(name) or forward.running.get(name, name)
        graph.record(new, graph.shape(name))
        outputs.append((f"next/{name}", new))
    for state in updates.states:
        graph.record(state.value, state.shape)
        outputs.append((f"next/{state.name}", state.value))
        train.slots.append(_slot(state.name, graph, "optimizer"))
    _add_update(train, updates, structure)
    unpack_late(graph)
    train.frozen = make_external(graph, {slot.name for slot in train.slots}, {*forward.parameters, *forward.buffers})
    finish(graph, outputs + gradients)
    check_in_place(graph, train.sums)
    return train


def _add_update(train: _Train, updates: Updates, structure: Structure) -> None:
    """Of a step in parts, the graph that makes the step of the sums, and the slots that it alone has."""
    if not structure.parts:
        return
    train.sums = [state.name for state in updates.states]
    shapes = {name: train.graph.shape(name) for name in map(parameter_of, train.sums)}
    train.update = update_graph(shapes, structure.optimizer)
    known = {slot.name for slot in train.slots} | {LEARNING_RATE}
    own = [value.name for value in train.update.inputs if value.name not in known]
    train.slots += [_slot(name, train.update, "optimizer") for name in own]


def _slot(name: str, graph: Graph, role: str) -> Slot:
    return Slot(name, f"next/{name}", list(graph.shape(name)), role)  # type: ignore[arg-type]


def _rewrite(structure: Structure, trainable: list[str]) -> Rewrite | None:
    """The rewriting of the forward graph that an objective asks for."""
    objective = structure.objective
    if not objective.fiarse and not objective.scaler:
        return None

    def rewrite(graph: Graph, norms: frozenset[str]) -> None:
        if objective.scaler and not norms:
            objectives.scale_hidden(graph, objective.scaler)
        if objective.fiarse:
            read = {value.name for value in graph.inputs}
            # Where entries were chosen by masks, biases were not among them.
            least = 2 if objective.element_masks else 0
            masked = [name for name in trainable if name not in norms and name in read]
            objectives.fiarse_masks(graph, [name for name in masked if len(graph.shape(name)) >= least])

    return rewrite


def _optimize(graph: Graph, structure: Structure, loss: Loss, trained: list[str]) -> Updates:
    """Append the backward pass and the optimizer; without clipping, each update follows its gradient at once."""
    stepper = make_stepper(graph, structure)
    masks = {}
    if structure.objective.element_masks:
        masks = {name: graph.add_input(Value(f"mask/{name}", graph.shape(name))) for name in trained}
        loss.sides.extend(masks.values())
    limit = structure.optimizer.clip_norm
    if limit is None:
        differentiate(graph, loss.value, trained, ready=lambda name, grad: stepper.apply(name, grad, masks.get(name)))
        return stepper.updates
    gradients = differentiate(graph, loss.value, trained)
    if masks:
        gradients = {name: graph.op("Mul", grad, masks[name]) for name, grad in gradients.items()}
    for name, grad in clip(graph, gradients, limit).items():
        stepper.apply(name, grad, masks.get(name))
    return stepper.updates


def _sum_up(graph: Graph, structure: Structure, loss: Loss, trained: list[str]) -> Updates:
    """Append the backward pass of a part of a batch, whose gradients are added to sums."""
    del structure
    summing = Summing(graph)
    differentiate(graph, loss.value, trained, ready=summing.apply, seed=summing.seed)
    return summing.updates


def _optimize_privately(
    graph: Graph, structure: Structure, loss: Loss, trained: list[str], seen: Mapping[str, Seen]
) -> Updates:
    """As `_optimize`, with samples' gradients clipped and the device's noise on their sum."""
    check_objective(structure.objective, structure.spec.model)
    if structure.spec.goal != CLASSIFY or structure.spec.loss:
        raise NoSingleNorms("its loss is not that of single classes")
    stepper = make_stepper(graph, structure)
    for name, grad in private_gradients(graph, loss, trained, seen=seen, batch=loss.batch).items():
        stepper.apply(name, grad)
    loss.batch.append(ROW_WEIGHT)
    return stepper.updates


def _optimize_alone(
    graph: Graph, structure: Structure, loss: Loss, trained: list[str]
) -> tuple[Updates, list[tuple[str, str]]]:
    """A step by what the device gives, and the gradients that it makes it of."""
    check_objective(structure.objective, structure.spec.model)
    stepper = make_stepper(graph, structure)
    sums, gradients = gradients_alone(graph, loss, trained)
    for name, value in sums.items():
        stepper.apply(name, value)
    return stepper.updates, gradients


def _spec(value: Value) -> TensorSpec:
    return TensorSpec(value.name, list(value.shape), str(value.dtype))  # type: ignore[arg-type]


def _manifest(structure: Structure, train: _Train, evaluation: Evaluation) -> Manifest:
    graphs = [train.graph] if train.update is None else [train.graph, train.update]
    inputs = {value.name: value for graph in graphs for value in graph.inputs}
    scalars = [inputs[name] for name in (LEARNING_RATE, SEED, CLIP, EXPECTED, SHARE) if name in inputs]
    batches = sorted({*WORK_BATCHES, *MEMORY_BATCHES})
    model = train.graph.to_model()
    sizes = dict(zip(batches, sizes_at(model, *batches), strict=True))
    fixed_bytes, sample_bytes = estimate(train.graph, sizes, train.update)
    return Manifest(
        format=FORMAT,
        opset=OPSET,
        ir_version=IR_VERSION,
        files={},
        batch=[_spec(inputs[name]) for name in train.loss.batch],
        slots=train.slots,
        scalars=[_spec(value) for value in scalars],
        loss=LOSS,
        metrics=[] if train.loss.correct is None else [CORRECT],
        goal=structure.spec.goal,
        eval_batch=evaluation.batch,
        eval_slots=evaluation.slots,
        logits=LOGITS,
        embedding=EMBEDDING,
        classes=structure.spec.classes,
        embedding_size=evaluation.graph.shape(EMBEDDING)[-1],
        sides=[_spec(inputs[name]) for name in train.loss.sides],
        frozen=[_spec(value) for value in train.frozen.values()],
        noise=[_spec(value) for value in train.graph.inputs if value.name.startswith(NOISE)],
        gradients=train.gradients,
        fixed_bytes=fixed_bytes,
        sample_bytes=sample_bytes,
        work=tabulate(model, sizes),
        macs=count_macs(evaluation.graph),
        description=f"{structure.spec.model} {structure.spec.input_shape}, {structure.optimizer.kind}",
        sums=train.sums,
        update_work={} if train.update is None else tabulate_once(train.update.to_model()),
    )
