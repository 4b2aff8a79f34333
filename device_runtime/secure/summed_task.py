"""Which tasks may have their change in a sum, and what must be the same for all in one."""

import hashlib
from typing import Any

import msgspec

from fedwright.protocol.errors import DeviceError
from fedwright.protocol.messages import Task


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
