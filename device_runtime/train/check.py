"""What must hold of an artifact before a session is made of it: nothing foreign, nothing too large, no data let out."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedwright.protocol.artifact import (
    MAX_ARTIFACT_BYTES,
    MAX_IR,
    MAX_OPSET,
    SHARE,
    SUM,
    SUPPLIED,
    TRAIN,
    UPDATE,
    Artifact,
    Manifest,
    Slot,
    TensorSpec,
    check_files,
    train_reads,
    train_writes,
    update_writes,
)
from fedwright.protocol.errors import BadArtifact, OverBudget
from fedwright.protocol.onnx_outline import Outline, OutlineValue, scan
from fedwright.protocol.predictor import need_bytes

__all__ = ["OPERATORS", "check_artifact", "need_bytes"]

# Steps of the longest honest sequence are some thousands; these many take seconds.
MAX_TRIPS = 1_000_000

RATE = "learning_rate"
SCALARS = {RATE: "float32", "seed": "int64", "clip": "float32", "expected_batch": "float32", SHARE: "float32"}

# Pure functions of tensors that training graphs are made of. No randomness, no sequences, no text, no control
# flow but Scan, whose length is that of a tensor.
_ALLOWED = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat
Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp
Expand EyeLike
Flatten Floor Gather GatherElements GatherND Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GRU
HardSigmoid HardSwish Identity InstanceNormalization IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
LSTM MatMul Max MaxPool MaxUnpool Mean Min Mod Mul Neg Not OneHot Or Pad Pow PRelu Range Reciprocal ReduceL1 ReduceL2
ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round Scan
ScatterElements Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze
Sub Sum Tan Tanh Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(_ALLOWED.split())


def check_artifact(artifact: Artifact, *, batch: int, free_bytes: int | None = None) -> None:
    """Raise BadArtifact when the artifact is not what it must be, OverBudget when a step would not fit into memory."""
    # An agent that waits for its first task need not hold the rules of a hundred operators.
    from fedwright.protocol.dataflow.outputs import check_eval_outputs, check_train_outputs
    from fedwright.protocol.private_graph import check_private

    check_files(artifact)
    manifest = artifact.manifest
    need = need_bytes(manifest, batch)
    _check_manifest(manifest)
    for name, data in artifact.graphs.items():
        if len(data) > MAX_ARTIFACT_BYTES:
            raise BadArtifact(f"{name} has {len(data)} bytes, more than the limit of {MAX_ARTIFACT_BYTES}")
        outline = scan(data, what=name, batch=batch)
        _check_versions(outline, manifest, name)
        _check_operators(outline, name)
        _check_tensors(outline, manifest, name)
        if outline.most_trips > MAX_TRIPS:
            raise BadArtifact(f"{name} runs the body of a Scan {outline.most_trips} times; at most {MAX_TRIPS} are run")
        need = max(need, own_bytes(outline, manifest))
        if name == UPDATE:
            _check_update(outline, manifest)
        elif name == TRAIN:
            _check_train(outline, manifest, name)
            check_train_outputs(outline, manifest, name)
            if manifest.noise:
                check_private(outline, manifest, name)
        else:
            _check_eval(outline, manifest, name)
            check_eval_outputs(outline, manifest, name)
    if free_bytes is not None and need > free_bytes:
        raise OverBudget(need, free_bytes)


def own_bytes(outline: Outline, manifest: Manifest) -> int:
    """Memory that a graph takes at least, by its own shapes and whatever its manifest says of it."""
    stored = sum(tensor.size_bytes for tensor in (*outline.initializers, *outline.inner))
    state = sum(_size_bytes(spec) for spec in _slot_specs(manifest))
    # Every slot exists twice, but for those of steps in parts.
    state *= 1 if manifest.sums else 2
    return stored + state + sum(map(_size_bytes, manifest.frozen)) + 4 * outline.most_entries


def _size_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def _check_manifest(manifest: Manifest) -> None:
    slots = _slot_specs(manifest)
    inputs = [*manifest.batch, *slots, *manifest.sides, *manifest.scalars, *manifest.frozen, *manifest.noise]
    _check_unique([item.name for item in inputs], "input")
    outputs = [manifest.loss, *manifest.metrics, *(slot.output for slot in manifest.slots), *manifest.gradients]
    _check_unique(outputs, "output")
    _check_sums(manifest)
    if manifest.gradients and len(manifest.gradients) != len(manifest.noise):
        count = f"{len(manifest.gradients)} gradients for {len(manifest.noise)} inputs of noise"
        raise BadArtifact(f"the manifest has {count}; build the artifact again")
    for spec in manifest.scalars:
        if SCALARS.get(spec.name) != spec.dtype or spec.shape not in ([], [1]):
            raise BadArtifact(f"scalar {spec.name!r} of the manifest is not one this release gives: {sorted(SCALARS)}")
    for item in (*slots, *manifest.frozen, *manifest.noise):
        if -1 in item.shape:
            raise BadArtifact(f"{item.name!r} has the free shape {item.shape}; state must have a fixed size")
    for chosen, known, what in (
        (manifest.eval_batch, manifest.batch, "eval_batch"),
        (manifest.eval_slots, slots, "eval_slots"),
    ):
        missing = set(chosen) - {item.name for item in known}
        if missing or len(set(chosen)) != len(chosen):
            raise BadArtifact(f"{what} of the manifest names {sorted(missing or chosen)[:3]} wrongly")
    if manifest.classes < 1:
        raise BadArtifact(f"the manifest says {manifest.classes} classes; there must be at least one")


def _check_sums(manifest: Manifest) -> None:
    """Sums are optimizer slots, each of a trainable one and as large, and nothing is hidden in parts."""
    if bool(manifest.sums) != (UPDATE in manifest.files):
        raise BadArtifact("the manifest has sums without update.onnx, or one without the other; build it again")
    slots = {slot.name: slot for slot in manifest.slots}
    for name in manifest.sums:
        found, of = slots.get(name), slots.get(name.removeprefix(SUM))
        fits = found is not None and of is not None and (found.role, of.role) == ("optimizer", "trainable")
        if not fits or found.shape != of.shape:  # type: ignore[union-attr]
            raise BadArtifact(f"the manifest's sum {name!r} is not one of a trainable slot's gradients")
    if manifest.sums and (manifest.noise or manifest.gradients):
        raise BadArtifact("the manifest hides samples in steps in parts, which nobody does; build it again")


def _slot_specs(manifest: Manifest) -> list[TensorSpec]:
    return _specs(manifest.slots)


def _specs(slots: Iterable[Slot]) -> list[TensorSpec]:
    return [TensorSpec(slot.name, slot.shape, slot.dtype) for slot in slots]


def _gradient_specs(manifest: Manifest) -> dict[str, TensorSpec]:
    """A gradient has the shape of the noise that hides it."""
    pairs = zip(manifest.gradients, manifest.noise, strict=False)
    return {name: TensorSpec(name, spec.shape, spec.dtype) for name, spec in pairs}


def _check_unique(names: Iterable[str], what: str) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise BadArtifact(f"the manifest uses the {what} name {twice[0]!r} twice")


def _check_versions(outline: Outline, manifest: Manifest, name: str) -> None:
    if not 1 <= outline.ir_version <= MAX_IR or outline.ir_version != manifest.ir_version:
        raise BadArtifact(
            f"{name} has IR version {outline.ir_version}; "
            f"the manifest says {manifest.ir_version}, at most {MAX_IR} runs"
        )
    foreign = sorted(domain for domain in outline.opsets if domain not in ("", "ai.onnx"))
    if foreign:
        raise BadArtifact(f"{name} imports the operator set {foreign[0]!r}; only standard ONNX operators are run here")
    if len(outline.opsets) != 1:
        raise BadArtifact(f"{name} imports {len(outline.opsets)} operator sets instead of one")
    (version,) = outline.opsets.values()
    if not 1 <= version <= MAX_OPSET or version != manifest.opset:
        raise BadArtifact(f"{name} has opset {version}; the manifest says {manifest.opset}, at most {MAX_OPSET} runs")


def _check_operators(outline: Outline, name: str) -> None:
    for domain, operator in sorted(outline.operators):
        if domain not in ("", "ai.onnx") or operator not in OPERATORS:
            full = f"{domain}.{operator}" if domain else operator
            raise BadArtifact(f"{name} uses the operator {full!r}, which is not on the list of allowed ones")


def _check_tensors(outline: Outline, manifest: Manifest, name: str) -> None:
    """No data from files: outside tensors are the manifest's frozen ones, and those come from memory."""
    frozen = {spec.name: spec for spec in manifest.frozen}
    _check_unique([tensor.name for tensor in outline.initializers], f"initializer of {name}")
    for tensor in (*outline.initializers, *outline.inner):
        if not tensor.external:
            continue
        spec = frozen.get(tensor.name)
        if tensor in outline.inner or spec is None or tensor.external != {"location": SUPPLIED}:
            place = tensor.external.get("location", "an unnamed place")
            raise BadArtifact(f"{name} wants to read tensor {tensor.name!r} from {place!r}; files are never read")
        if tensor.dims != tuple(spec.shape) or tensor.dtype != spec.dtype or tensor.size_bytes:
            raise BadArtifact(f"{name} has the frozen tensor {tensor.name!r} not as its manifest says")
    own = {tensor.name for tensor in outline.initializers if not tensor.external}
    clash = own & {value.name for value in outline.inputs} or own & set(frozen)
    if clash:
        raise BadArtifact(f"{name} has a value of its own for the declared input {min(clash)!r}")


def _check_train(outline: Outline, manifest: Manifest, name: str) -> None:
    scalars = [spec for spec in manifest.scalars if not (manifest.sums and spec.name == RATE)]
    inputs = [*manifest.batch, *_specs(train_reads(manifest)), *manifest.sides, *scalars, *manifest.noise]
    _compare(outline.inputs, inputs, f"{name} input")
    written = {slot.output: TensorSpec(slot.output, slot.shape, slot.dtype) for slot in train_writes(manifest)}
    written |= _gradient_specs(manifest)
    numbers = [manifest.loss, *manifest.metrics]
    for value in outline.outputs:
        if value.name in numbers and value.dims not in ((), (1,)):
            raise BadArtifact(f"{name} output {value.name!r} must be one number but has shape {value.dims}")
    if not outline.outputs or outline.outputs[0].name != manifest.loss:
        raise BadArtifact(f"{name} must have the loss {manifest.loss!r} as its first output")
    _same_names([value.name for value in outline.outputs], [*numbers, *written], f"{name} output")
    _compare([value for value in outline.outputs if value.name in written], written.values(), f"{name} output")


def _check_update(outline: Outline, manifest: Manifest) -> None:
    """It sees no sample, so whatever it makes of its slots is for the server to answer for."""
    slots = update_writes(manifest)
    rate = [spec for spec in manifest.scalars if spec.name == RATE]
    _compare(outline.inputs, [*_specs(slots), *rate], f"{UPDATE} input")
    written = [TensorSpec(slot.output, slot.shape, slot.dtype) for slot in slots]
    _compare(outline.outputs, written, f"{UPDATE} output")


def _check_eval(outline: Outline, manifest: Manifest, name: str) -> None:
    batch = [spec for spec in manifest.batch if spec.name in manifest.eval_batch]
    slots = [spec for spec in _slot_specs(manifest) if spec.name in manifest.eval_slots]
    _compare(outline.inputs, [*batch, *slots], f"{name} input")
    _same_names([value.name for value in outline.outputs], [manifest.logits, manifest.embedding], f"{name} output")


def _compare(found: Sequence[OutlineValue], declared: Iterable[TensorSpec], what: str) -> None:
    """Declared and real values are the same, with the same types and shapes."""
    specs = {spec.name: spec for spec in declared}
    _same_names([value.name for value in found], list(specs), what)
    for value in found:
        spec = specs[value.name]
        if value.dtype != spec.dtype or value.dims != tuple(spec.shape):
            raise BadArtifact(
                f"{what} {value.name!r} is {value.dtype} {_shown(value.dims)} "
                f"but the manifest says {spec.dtype} {_shown(spec.shape)}"
            )


def _same_names(found: Sequence[str], declared: Sequence[str], what: str) -> None:
    undeclared, absent = sorted(set(found) - set(declared)), sorted(set(declared) - set(found))
    if undeclared:
        raise BadArtifact(f"{what} {undeclared[0]!r} is not declared in the manifest")
    if absent:
        raise BadArtifact(f"{what} {absent[0]!r} is declared in the manifest but not there")
    if len(set(found)) != len(found):
        raise BadArtifact(f"{what}: one name stands there twice")


def _shown(dims: Sequence[int] | None) -> str:
    return "of unknown rank" if dims is None else str(list(dims))
