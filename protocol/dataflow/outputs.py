"""Which outputs of an artifact may leave a device: none that carries single samples of the batch."""

from collections.abc import Iterable

from fedwright.protocol.artifact import Manifest, TensorSpec
from fedwright.protocol.dataflow.analysis import follow
from fedwright.protocol.dataflow.values import Dim, Kind, Rows, Value
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import Outline

# The edges of a graph, by their place among the samples, come with the data.
LINKS = "edges"


def check_train_outputs(outline: Outline, manifest: Manifest, name: str) -> None:
    """Raise BadArtifact unless all that a training graph gives is summed over the samples of its batch."""
    for output, value in follow(outline.graph, given_values(manifest), what=name).items():
        if value.kind in (Kind.ROWS, Kind.SINGLE, Kind.LINKS):
            why = value.why or "it is not summed over the batch"
            raise BadArtifact(f"{name} output {output!r} would carry single samples off this device: {why}")


def given_values(manifest: Manifest) -> dict[str, Value]:
    """What is known of the inputs of a training graph."""
    slots = [TensorSpec(slot.name, slot.shape, slot.dtype) for slot in manifest.slots]
    return _batch(manifest.batch) | _constants([*slots, *manifest.sides, *manifest.scalars, *manifest.noise])


def check_eval_outputs(outline: Outline, manifest: Manifest, name: str) -> None:
    """Raise BadArtifact unless each row that an evaluation graph gives is made of the sample at its place alone."""
    batch = [spec for spec in manifest.batch if spec.name in manifest.eval_batch]
    slots = [TensorSpec(slot.name, slot.shape, slot.dtype) for slot in manifest.slots]
    given = _batch(batch) | _constants(slots)
    for output, value in follow(outline.graph, given, what=name).items():
        rows = value.dims[0] if value.dims else None
        if value.kind not in (Kind.FIXED, Kind.SUM, Kind.ROWS) or not isinstance(rows, Rows) or rows.outer != 1:
            why = value.why or "its first axis is not that of the samples"
            raise BadArtifact(f"{name} output {output!r} is not one row for each sample: {why}")


def _batch(specs: Iterable[TensorSpec]) -> dict[str, Value]:
    return {spec.name: _rows(spec) for spec in specs}


def _rows(spec: TensorSpec) -> Value:
    linked = spec.name == LINKS and spec.shape == [-1, 2]
    if not spec.shape or spec.shape[0] != -1:
        return Value(Kind.SINGLE, why=f"the batch input {spec.name!r} has no free first axis")
    first = Rows(of=LINKS) if linked else Rows()
    return Value(Kind.LINKS if linked else Kind.ROWS, (first, *_dims(spec.shape[1:])))


def _constants(specs: Iterable[TensorSpec]) -> dict[str, Value]:
    return {spec.name: Value(Kind.FIXED, tuple(_dims(spec.shape))) for spec in specs}


def _dims(shape: Iterable[int]) -> list[Dim]:
    return [size if size >= 0 else None for size in shape]
