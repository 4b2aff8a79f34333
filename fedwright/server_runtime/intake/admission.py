"""What the server takes in: reports that fit the run, and updates of the right names, shapes and finite values."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import BadUpdate
from fedwright.protocol.messages import Report, Returns, Stats
from fedwright.server_runtime.artifacts.structure import ModelSpec


def report_problem(report: Report, spec: ModelSpec) -> str | None:
    """Why a device cannot take part in a run of this model; None when it can."""
    shape = tuple(report.data.input_shape)
    if shape != spec.input_shape:
        return f"its data has shape {list(shape)} but the run needs {list(spec.input_shape)}; give it other data"
    if report.data.classes > spec.classes:
        return (
            f"its labels reach class {report.data.classes - 1} but the run has {spec.classes} classes; "
            f"fix its labels or set model.classes"
        )
    return None


def check_stats(stats: Stats) -> None:
    """Raise BadUpdate when a device's own figures contradict each other."""
    for name in ("correct_before", "correct_after"):
        correct = getattr(stats, name)
        if correct is not None and correct > stats.holdout:
            raise BadUpdate(f"stats.{name} is {correct} of {stats.holdout} samples; the device counts wrongly")


def check_tensors(tensors: Mapping[str, NDArray[np.generic]], manifest: Manifest, returns: Returns) -> None:
    """Raise BadUpdate unless the tensors are what `returns` asked for: names, shapes, type, all finite."""
    expected: dict[str, tuple[int, ...]] = {}
    if returns.weights != "none":
        expected = {slot.name: tuple(slot.shape) for slot in manifest.slots if slot.role != "optimizer"}
    _check_names(set(tensors), set(expected), prototypes=returns.prototypes)
    for name, array in tensors.items():
        shape = expected.get(name)
        if shape is not None and array.shape != shape:
            raise BadUpdate(f"tensor {name} has shape {list(array.shape)} but {list(shape)} was asked for")
        if not np.issubdtype(array.dtype, np.floating):
            raise BadUpdate(f"tensor {name} has type {array.dtype} but a float was asked for")
        # A sum is finite only if every addend is (or they overflow, which is as bad); one pass, no mask array.
        if not np.isfinite(array.sum(dtype=np.float64)):
            raise BadUpdate(f"tensor {name} holds values that are not finite; the device's training diverged")


def _check_names(got: set[str], expected: set[str], *, prototypes: bool) -> None:
    if prototypes:
        expected = expected | {"prototypes", "prototype_counts"}
    if got != expected:
        missing = ", ".join(sorted(expected - got)) or "nothing"
        extra = ", ".join(sorted(got - expected)) or "nothing"
        raise BadUpdate(f"the update lacks {missing[:300]} and has {extra[:300]} that was not asked for")
