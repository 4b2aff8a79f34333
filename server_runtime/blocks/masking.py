"""Which part of a model a device gets: the largest entries, or the strongest channels, as many as its budget allows."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axes, Axis, Index, Joined, entries, group_sizes

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def top_entries(weights: Tensors, names: Collection[str], share: float, *, least: float = 0.0) -> dict[str, Array]:
    """Masks of the floor(share * d) largest |w| over all named tensors together, and at least one in each.

    Exactly that many entries, also where several are equally large. least: the part of its own share that every tensor
    keeps; without any, a large layer whose entries are small by nature may be cut off altogether.
    """
    flat = {name: np.abs(weights[name]).reshape(-1) for name in names}
    total = sum(value.size for value in flat.values())
    count = _budget(share, total, len(flat))
    if share == 1:
        return {name: np.ones(weights[name].shape, bool) for name in names}
    order = list(flat)
    joined = np.concatenate([flat[name] for name in order])
    starts = np.cumsum([0, *(flat[name].size for name in order)])
    # One each, and of what is then left `least` by size: never more than the budget.
    floors = [1 + math.floor(least * (count - len(order)) * flat[name].size / total) for name in order]
    first = np.concatenate([start + _largest(flat[n], k) for n, start, k in zip(order, starts, floors, strict=False)])
    chosen = np.zeros(total, bool)
    chosen[first] = True
    joined[first] = -1.0
    if count > len(first):
        chosen[_largest(joined, count - len(first))] = True
    return {
        name: chosen[start : start + flat[name].size].reshape(weights[name].shape)
        for name, start in zip(order, starts, strict=False)
    }


def _largest(values: Array, count: int) -> Array:
    """Where the `count` largest values lie."""
    return np.argpartition(values, values.size - count)[values.size - count :]


def top_entries_by_layer(weights: Tensors, names: Collection[str], share: float) -> dict[str, Array]:
    """Masks of the floor(share * size) largest |w| of every tensor on its own, and at least one."""
    _budget(share, sum(weights[name].size for name in names), len(names))
    masks: dict[str, Array] = {}
    for name in names:
        size = np.abs(weights[name]).reshape(-1)
        count = max(1, math.floor(share * size.size))
        chosen = np.zeros(size.size, bool)
        chosen[_largest(size, count)] = True
        masks[name] = chosen.reshape(weights[name].shape)
    return masks


def _budget(share: float, entries_in_all: int, tensors: int) -> int:
    count = math.floor(share * entries_in_all)
    if count < tensors:
        raise ConfigError(
            f"a share of {share:g} leaves {count} of {entries_in_all} values for {tensors} tensors, which is below one "
            f"value each; give a larger size or a larger model"
        )
    return count


def top_channels(weights: Tensors, axes: Axes, share: float, *, whole: Collection[str] = ()) -> dict[str, Index]:
    """The ceil(sqrt(share) * C) channels of every group whose filters have the largest L2 norm, as a plan.

    A layer with that share of its inputs and of its outputs has about `share` of its parameters. The groups in `whole`
    keep all their channels.
    """
    plan = {}
    norms = channel_norms(weights, axes)
    for group, norm in norms.items():
        count = len(norm) if group in whole else math.ceil(round(math.sqrt(share) * len(norm), 9))
        # A stable sort makes the lower channel win a tie.
        plan[group] = np.sort(np.argsort(-norm, kind="stable")[:count]).astype(np.int64)
    return plan


def channel_norms(weights: Tensors, axes: Axes) -> dict[str, Array]:
    """For each group, the L2 norm of each channel's filters over all matrices and kernels that make the channel."""
    sizes = group_sizes({name: weights[name] for name in axes}, axes)
    squares = {group: np.zeros(size) for group, size in sizes.items()}
    for name, tensor_axes in axes.items():
        made_by = tensor_axes[0] if len(tensor_axes) > 1 else None
        if isinstance(made_by, Axis):
            per_row = (weights[name].astype(np.float64) ** 2).reshape(len(weights[name]), -1).sum(axis=1)
            size = sizes[made_by.group]
            squares[made_by.group] += per_row.reshape(made_by.outer, size, made_by.inner).sum(axis=(0, 2))
    return {group: np.sqrt(square) for group, square in squares.items()}


def live_plan(weights: Tensors, axes: Axes, *, fixed: Collection[str] = ()) -> dict[str, Index]:
    """The channels that matter, as a plan; without the others the model computes the same.

    A channel is dead when nothing reads it, or when all that makes it (weights and bias) is zero, for activations with
    f(0) = 0. Dead channels leave others unread, so this goes on until nothing more is found. Groups in `fixed` are not
    touched: those that a normalisation over several channels sees, recurrent ones, and those that must keep their size.
    """
    sizes = group_sizes({name: weights[name] for name in axes}, axes)
    plan = {group: np.arange(size, dtype=np.int64) for group, size in sizes.items()}
    movable = [group for group in sizes if group not in fixed and _plain(axes, group)]
    while True:
        found = {group: _live(weights, axes, plan, group) for group in movable}
        if all(len(found[group]) == len(plan[group]) for group in movable):
            return plan
        plan |= found


def _plain(axes: Axes, group: str) -> bool:
    """Whether every axis that a group lies on is its own and without gates or heads, and something reads it."""
    read = False
    for tensor_axes in axes.values():
        for position, axis in enumerate(tensor_axes):
            if isinstance(axis, Joined) and any(part is not None and part.group == group for part, _ in axis.parts):
                return False
            if isinstance(axis, Axis) and axis.group == group:
                read |= position > 0
                if axis.outer != 1:
                    return False
    return read


def _live(weights: Tensors, axes: Axes, plan: Mapping[str, Index], group: str) -> Index:
    """Which of a group's channels in the plan are both made and read; at least one is kept."""
    size = len(plan[group])
    made, read = np.zeros(size, bool), np.zeros(size, bool)
    for name, tensor_axes in axes.items():
        for position, axis in enumerate(tensor_axes):
            if isinstance(axis, Axis) and axis.group == group:
                used = _used(weights[name], tensor_axes, plan, position)
                per_channel = used.reshape(axis.outer, size, axis.inner).any(axis=(0, 2))
                if position == 0:
                    made |= per_channel
                else:
                    read |= per_channel
    kept: Index = plan[group][made & read]
    return kept if len(kept) else plan[group][:1]


def _used(tensor: Array, tensor_axes: tuple[Any, ...], plan: Mapping[str, Index], position: int) -> Array:
    """Which entries along one axis have something that is not zero within the plan."""
    part = tensor
    for number, axis in enumerate(tensor_axes):
        kept = entries(axis, tensor.shape[number], plan)
        if kept is not None:
            part = np.take(part, kept, axis=number)
    others = tuple(number for number in range(tensor.ndim) if number != position)
    return np.asarray((part != 0).any(axis=others) if others else part != 0)
