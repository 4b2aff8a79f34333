"""What the server takes in: reports that fit the run, and updates of the right names, shapes and finite values."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol import deltas
from fedwright.protocol.artifact import MEASURED, Manifest, returned_shapes
from fedwright.protocol.errors import BadBlob, BadUpdate
from fedwright.protocol.messages import Report, Returns, Stats
from fedwright.server_runtime.blocks.prototypes import check_owned
from fedwright.server_runtime.spec import ModelSpec


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


def read_update(
    path: Path, manifest: Manifest, returns: Returns, *, sent: dict[str, NDArray[Any]] | None = None
) -> dict[str, NDArray[Any]]:
    """The tensors of an update, decoded; BadUpdate unless they are what `returns` asked for and all finite.

    sent: the masks of the entries that the device was sent.
    """
    try:
        tensors = deltas.decode(path, returned_shapes(manifest, returns), sent=sent)
    except BadBlob as err:
        raise BadUpdate(f"its tensors are not what was asked for: {err}") from err
    for name, array in tensors.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise BadUpdate(f"tensor {name} has type {array.dtype} but a float was asked for")
        # A sum is finite only if every addend is (or they overflow, which is as bad); one pass, no mask array.
        if not np.isfinite(array.sum(dtype=np.float64)):
            raise BadUpdate(f"tensor {name} holds values that are not finite; the device's training diverged")
    if returns.prototypes:
        check_owned(tensors["prototypes"], tensors["prototype_counts"])
    return tensors


def clip_norm(tensors: dict[str, NDArray[Any]], limit: float | None) -> dict[str, NDArray[Any]]:
    """Scale a change down so that its norm over all tensors is at most `limit`: x * min(1, limit / ||x||).

    Class means, counts and logits that came with it are no part of the change and stay as they are.
    """
    if limit is None:
        return tensors
    change = {name: x for name, x in tensors.items() if name not in MEASURED}
    norm = float(np.sqrt(sum(np.vdot(x, x).astype(np.float64) for x in change.values())))
    return tensors if norm <= limit else tensors | {name: x * np.float32(limit / norm) for name, x in change.items()}
