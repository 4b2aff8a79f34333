"""What a task changed, as one row of numbers that goes into a sum; both sides know its order."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.secure.summed_task import check_summed, check_trained
from fedwright.protocol.artifact import BY_CLASS, CLASS_COUNTS, CLASS_MEANS, MEASURED
from fedwright.protocol.errors import DeviceError
from fedwright.protocol.messages import Stats, Task
from fedwright.protocol.secure.class_means import shared_means
from fedwright.protocol.secure.masks import check_reach

Row = NDArray[np.float32]


def row_of(tensors: Mapping[str, NDArray[Any]], task: Task, stats: Stats) -> Row:
    """The change of a task, tensor by tensor in the order of their names; DeviceError when it has no place in a sum."""
    terms = task.sum
    if terms is None:
        raise DeviceError("this task's change belongs into no sum; this is a mistake in the program")
    check_summed(task)
    check_trained(task, stats)
    parts = {name: np.asarray(tensors[name], np.float32) for name in sorted(tensors)}
    if terms.clip_norm is not None and terms.noise_multiplier is None:
        _clip({name: part for name, part in parts.items() if name not in MEASURED}, terms.clip_norm)
    if CLASS_MEANS in parts:
        parts |= dict(zip(BY_CLASS, shared_means(parts[CLASS_MEANS], parts[CLASS_COUNTS]), strict=True))
    row = np.concatenate([part.reshape(-1) for part in parts.values()]) if parts else np.zeros(0, np.float32)
    if terms.noise_multiplier is None:
        # Where there is noise a row of any size goes in, so that nobody hears of it.
        check_reach(row, terms.reach)
    return row


def _clip(parts: Mapping[str, Row], most: float) -> None:
    """Scale a change down to a norm, in place."""
    norm = math.sqrt(sum(float(np.vdot(part, part)) for part in parts.values()))
    for part in parts.values():
        part *= np.float32(min(1.0, most / norm) if norm > 0 else 1.0)
