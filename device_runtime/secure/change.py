"""What a task changed, as one row of numbers that goes into a sum; both sides know its order."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.artifact import BY_CLASS, CLASS_COUNTS, CLASS_MEANS, MEASURED
from fedwright.protocol.errors import DeviceError
from fedwright.protocol.messages import Task
from fedwright.protocol.secure.class_means import shared_means
from fedwright.protocol.secure.masks import check_reach

Row = NDArray[np.float32]


def row_of(tensors: Mapping[str, NDArray[Any]], task: Task) -> Row:
    """The change of a task, tensor by tensor in the order of their names; DeviceError when it has no place in a sum."""
    terms = task.sum
    if terms is None:
        raise DeviceError("this task's change belongs into no sum; this is a mistake in the program")
    check_summed(task)
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


def check_summed(task: Task) -> None:
    """Raise DeviceError for a task whose change hides nobody's, or whose result no sum would hide."""
    recipe, returns = task.recipe, task.returns
    if not recipe.learning_rate or not (recipe.epochs if recipe.steps is None else recipe.steps):
        raise DeviceError("the task trains nothing, so its change hides nobody's in a sum; it is not begun")
    if recipe.public or recipe.classes is not None:
        raise DeviceError("the task trains on other rows than the device's own, which hides nobody's in a sum")
    _check_noise(task)
    if returns.weights == "weights" or returns.masked:
        raise DeviceError("the task asks for more than a change, which no sum would hide; it is not begun")


def _check_noise(task: Task) -> None:
    """Raise DeviceError for noise that would not hide this device's change as its terms say."""
    terms, returns = task.sum, task.returns
    if terms is None or terms.noise_multiplier is None:
        return
    if terms.clip_norm is None:
        raise DeviceError("a sum with noise takes changes up to a clip, and none is given; it is not begun")
    if returns.class_means or returns.logits:
        raise DeviceError("a sum with noise is of changes alone, not of class means or logits; it is not begun")


def work_of(task: Task) -> bytes:
    """What a device trained, as far as it must be the same for all in one sum: the model and how far it may move."""
    refs = (task.artifact, task.weights, task.sides, task.frozen, task.public)
    names = tuple(None if ref is None else ref.sha256 for ref in refs)
    terms = task.sum
    rule: tuple[Any, ...] | None = None
    if terms is not None:
        rule = (terms.group, terms.least, terms.reach, terms.by, terms.largest_weight)
        # Agents of an earlier release know no noise.
        rule += () if terms.noise_multiplier is None else (terms.clip_norm, terms.noise_multiplier)
    asked = (sorted(task.returns.personal), task.returns.weights, task.returns.class_means, task.returns.logits)
    word = ("fedwright sum work", names, task.recipe.learning_rate, asked, rule)
    return hashlib.sha256(msgspec.msgpack.encode(word)).digest()
