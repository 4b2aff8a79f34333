"""What the server takes in: reports that fit the run, and updates of the right names, shapes and finite values."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol import deltas
from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS, MEASURED, Manifest, returned_shapes
from fedwright.protocol.errors import BadBlob, BadUpdate
from fedwright.protocol.messages import Recipe, Report, Returns, Stats, Task
from fedwright.server_runtime.blocks.prototypes import check_owned
from fedwright.server_runtime.fleet.class_names import RunData
from fedwright.server_runtime.spec import ModelSpec

# No training moves a tensor this many times as far as the larger of 1 and what was sent of it.
MOST_GROWTH = 1e6
# Class means and logits beyond this have squares that float32 cannot add up.
MOST_MEASURED = 1e9
# No span of time, energy, loss or error is larger; sums and means over a fleet of such figures are finite.
MOST_FIGURE = 1e30
_SPANS = ("train_s", "cpu_s", "task_s", "train_cpu_s", "energy_j", "loss_first", "loss_last")


def report_problem(report: Report, spec: ModelSpec, run_data: RunData | None = None) -> str | None:
    """Why a device cannot take part in a run of this model; None when it can."""
    shape = tuple(report.data.input_shape)
    if shape != spec.input_shape and not is_without_data(report):
        return f"its data has shape {list(shape)} but the run needs {list(spec.input_shape)}; give it other data"
    problem = (run_data or RunData()).problem(report)
    if problem is not None:
        return problem
    if report.data.classes > spec.classes:
        return (
            f"its labels reach class {report.data.classes - 1} but the run has {spec.classes} classes; "
            f"fix its labels or set model.classes"
        )
    return None


def is_without_data(report: Report) -> bool:
    """Whether a device says only which classes it will meet; it has nothing to learn from or to measure with."""
    return not report.data.input_shape and not report.data.samples and not report.trains


def check_stats(stats: Stats, recipe: Recipe) -> None:
    """Raise BadUpdate when a device's own figures contradict each other or the task."""
    if not stats.samples and (recipe.epochs if recipe.steps is None else recipe.steps):
        raise BadUpdate("stats.samples is 0 although it trained; give the device data or leave it out")
    for name in _SPANS:
        figure = getattr(stats, name)
        if figure is not None and not abs(figure) <= MOST_FIGURE:
            raise BadUpdate(f"stats.{name} is {figure}, which is no measurement; the device's training diverged")
    for name in ("measures_before", "measures_after"):
        for what, figure in (getattr(stats, name) or {}).items():
            if not abs(figure) <= MOST_FIGURE:
                raise BadUpdate(f"stats.{name} has {what} {figure}, which is no measurement; its training diverged")
    for name in ("correct_before", "correct_after"):
        correct = getattr(stats, name)
        if correct is not None and correct > stats.holdout:
            raise BadUpdate(f"stats.{name} is {correct} of {stats.holdout} samples; the device counts wrongly")


def check_hidden(stats: Stats, task: Task) -> None:
    """Raise BadUpdate unless a device did to its samples' gradients what the run accounts for."""
    wanted, done = task.privacy, stats.privacy
    if wanted is None or not stats.steps:
        return
    if done is None or done.clip > wanted.clip or done.noise_multiplier < wanted.noise_multiplier:
        raise BadUpdate("it does not say that its samples were hidden as the task asks; update the device")


def read_update(
    path: Path,
    manifest: Manifest,
    returns: Returns,
    *,
    sent: dict[str, NDArray[Any]] | None = None,
    reach: Mapping[str, float] | None = None,
) -> dict[str, NDArray[Any]]:
    """The tensors of an update, decoded; BadUpdate unless they are what `returns` asked for, and of sane size.

    sent: the masks of the entries that the device was sent. reach: the largest magnitude in each tensor it was sent.
    """
    try:
        tensors = deltas.decode(path, returned_shapes(manifest, returns), sent=sent)
    except BadBlob as err:
        raise BadUpdate(f"its tensors are not what was asked for: {err}") from err
    dtypes = {slot.name: slot.dtype for slot in manifest.slots}
    for name, array in tensors.items():
        wanted = dtypes.get(name, "float32")
        if array.dtype != wanted:
            raise BadUpdate(f"tensor {name} has type {array.dtype} but {wanted} was asked for")
        limit = MOST_MEASURED if name in MEASURED else MOST_GROWTH * max(1.0, (reach or {}).get(name, 0.0))
        _check_magnitude(name, array, limit)
    if returns.class_means:
        check_owned(tensors[CLASS_MEANS], tensors[CLASS_COUNTS])
    return tensors


def magnitude(array: NDArray[Any]) -> float:
    """max |x|, not a number if one of them is none; without a second array."""
    return max(float(array.max()), -float(array.min())) if array.size else 0.0


def _check_magnitude(name: str, array: NDArray[Any], limit: float) -> None:
    largest = magnitude(array)
    if not math.isfinite(largest):
        raise BadUpdate(f"tensor {name} holds values that are not finite; the device's training diverged")
    if largest > limit:
        raise BadUpdate(
            f"tensor {name} reaches {largest:.0e} but at most {limit:.0e} is believed; its training diverged"
        )


def change_norm(tensors: Mapping[str, NDArray[Any]]) -> float:
    """The norm of a change over all its tensors; what was measured is no part of it."""
    return math.sqrt(sum(float(np.vdot(x, x)) for name, x in tensors.items() if name not in MEASURED))


def clip_norm(tensors: dict[str, NDArray[Any]], limit: float | None) -> dict[str, NDArray[Any]]:
    """Scale a change down so that its norm over all tensors is at most `limit`: x * min(1, limit / ||x||).

    Class means, counts and logits that came with it are no part of the change and stay as they are.
    """
    if limit is None:
        return tensors
    norm = change_norm(tensors)
    change = {name: x for name, x in tensors.items() if name not in MEASURED}
    return tensors if norm <= limit else tensors | {name: x * np.float32(limit / norm) for name, x in change.items()}
