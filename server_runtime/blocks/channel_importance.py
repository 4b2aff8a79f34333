"""How much each channel of a model matters, by the size of its entries, and plans of the most important ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.server_runtime.blocks.slicing import Axes, Axis, Plan

Floats = NDArray[np.float64]
Scores = dict[str, Floats]


def channel_norms(tensors: Mapping[str, NDArray[Any]], axes: Axes) -> Scores:
    """The root of the sum of squares of all entries that belong to a channel, for each channel group.

    An axis that joins several groups is left out.
    """
    squares: Scores = {}
    for name, tensor in tensors.items():
        for position, axis in enumerate(axes[name]):
            if isinstance(axis, Axis):
                own = np.moveaxis(np.asarray(tensor, np.float64) ** 2, position, 0).reshape(tensor.shape[position], -1)
                by_channel = own.sum(axis=1).reshape(axis.outer, -1, axis.inner).sum(axis=(0, 2))
                squares[axis.group] = squares.get(axis.group, np.zeros(len(by_channel))) + by_channel
    return {group: np.sqrt(value) for group, value in squares.items()}


def largest_plan(scores: Mapping[str, Floats], sizes: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """The `sizes[group]` channels with the largest scores of every group, in their order; ties go to the first."""
    return {
        group: np.sort(np.argsort(-scores[group], kind="stable")[:size]).astype(np.int64)
        for group, size in sorted(sizes.items())
    }


def plan_to_marks(plan: Plan) -> tuple[int, ...]:
    """A plan as whole numbers: its groups in order of their names, one after the other."""
    return tuple(int(index) for _, kept in sorted(plan.items()) for index in kept)


def plan_from_marks(marks: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """The plan that `plan_to_marks` was given, for groups of these sizes."""
    plan, at = {}, 0
    for group, size in sorted(sizes.items()):
        plan[group] = np.array(marks[at : at + size], np.int64)
        at += size
    return plan
