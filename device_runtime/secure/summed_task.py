"""Which tasks may have their change in a sum, and what must be the same for all in one."""

import hashlib
from typing import Any

import msgspec

from fedwright.protocol.errors import DeviceError
from fedwright.protocol.messages import Effort, Recipe, Stats, Task
from fedwright.protocol.sum_messages import MOST_TIMES

OTHERWISE = "otherwise than the others of its sum"


def check_summed(task: Task) -> None:
    """Raise DeviceError for a task whose change hides nobody's, or whose result no sum would hide."""
    recipe, returns = task.recipe, task.returns
    if not recipe.learning_rate or not (recipe.epochs if recipe.steps is None else recipe.steps):
        raise DeviceError("the task trains nothing, so its change hides nobody's in a sum; it is not begun")
    if recipe.public or recipe.classes is not None:
        raise DeviceError("the task trains on other rows than the device's own, which hides nobody's in a sum")
    _check_noise(task)
    if task.sum is not None:
        _check_effort(recipe, task.sum.effort)
    if returns.weights == "weights" or returns.masked:
        raise DeviceError("the task asks for more than a change, which no sum would hide; it is not begun")


def _check_effort(recipe: Recipe, effort: Effort) -> None:
    """Raise DeviceError for a recipe that is not what all in the sum were told of each other's."""
    fits = recipe.batch <= effort.batch <= MOST_TIMES * recipe.batch
    counted = recipe.steps is not None if effort.multiple else recipe.steps == effort.steps
    if not fits or not counted or recipe.epochs != effort.epochs:
        raise DeviceError(f"the task trains {OTHERWISE}: who does more than they is told from them; it is not begun")


def check_trained(task: Task, stats: Stats) -> None:
    """Raise DeviceError where there was nothing to train on, or a task had other steps than everybody's epochs take."""
    if not stats.samples or not stats.steps:
        raise DeviceError("it trained on no samples, so that its change hides nobody's in a sum")
    effort = None if task.sum is None else task.sum.effort
    if effort is not None and effort.multiple:
        own = effort.epochs * -(-stats.samples // task.recipe.batch)
        if task.recipe.steps != -(-own // effort.multiple) * effort.multiple:
            raise DeviceError(f"the task trained {OTHERWISE}; its change goes into no sum")


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
    """What a device trained, as far as it must be the same for all in one sum: the model, how far and how it may move.

    Of what all may do alike each device sees to its own part (check_summed).
    """
    refs = (task.artifact, task.weights, task.sides, task.frozen, task.public)
    names = tuple(None if ref is None else ref.sha256 for ref in refs)
    terms = task.sum
    rule: tuple[Any, ...] | None = None
    if terms is not None:
        rule = msgspec.structs.astuple(terms)
    asked = (sorted(task.returns.personal), task.returns.weights, task.returns.class_means, task.returns.logits)
    word = ("fedwright sum work", names, task.recipe.learning_rate, asked, rule, task.privacy)
    return hashlib.sha256(msgspec.msgpack.encode(word)).digest()
