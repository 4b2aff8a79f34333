"""Submodels by index: take, put and describe slices of named tensors along channel groups.

Every tensor axis is fixed (None) or made of channel groups (an `Axis`, or several joined end to end);
a submodel is a plan {group: sorted, distinct indices}. A group that the plan does not name is kept whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError

Array = NDArray[np.generic]
Index = NDArray[np.int64]
Plan = Mapping[str, Index]


@dataclass(frozen=True)
class Axis:
    """An axis of length outer × C × inner, where C is the size of the channel group.

    Entry (o, c, s) lies at (o * C + c) * inner + s. Plain channels: 1, 1. Flattened maps: inner = H * W.
    LSTM gates: outer = 4. Attention: outer = heads, the group is the width inside one head.
    """

    group: str
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True)
class Joined:
    """Parts that lie end to end on one axis (concatenated channels): (axis or None, full length) each."""

    parts: tuple[tuple[Axis | None, int], ...]


AxisLike = Axis | Joined | None
TensorAxes = tuple[AxisLike, ...]
Axes = Mapping[str, TensorAxes]


def group_size(full: int, width: float, rounding: Literal["floor", "ceil"] = "floor") -> int:
    """How many of `full` channels a width keeps; never 0."""
    if not 0 < width <= 1:
        raise ConfigError(f"width {width} is not a width; choose one above 0 and up to 1")
    # A product such as 0.7 * 10 must not fall to 6.999...: eleven digits are kept.
    exact = round(full * width, 11)
    return max(1, int(np.floor(exact) if rounding == "floor" else np.ceil(exact)))


def group_sizes(tensors: Mapping[str, Array], axes: Axes) -> dict[str, int]:
    """The full size of every group, read off the tensors; two axes that disagree are an error."""
    found: dict[str, int] = {}
    for name, tensor_axes in axes.items():
        for position, axis in enumerate(tensor_axes):
            for part, length in _parts(axis, tensors[name].shape[position]):
                size, rest = divmod(length, part.outer * part.inner)
                if rest or found.setdefault(part.group, size) != size:
                    raise ConfigError(
                        f"axis {position} of {name} has {length} entries, which does not fit channel group "
                        f"{part.group!r} of size {found.get(part.group, size)}; correct the model's axes"
                    )
    return found


def entries(axis: AxisLike, length: int, plan: Plan) -> Index | None:
    """Which of an axis's `length` entries the plan keeps, in order; None when it keeps all."""
    if axis is None:
        return None
    if isinstance(axis, Joined):
        return _joined(axis, plan)
    kept = plan.get(axis.group)
    return None if kept is None else _expand(axis, length // (axis.outer * axis.inner), kept)


def tensor_index(shape: Sequence[int], tensor_axes: TensorAxes, plan: Plan) -> tuple[Index | slice, ...]:
    """One index per axis, as `grid` and `take_one` use them; a run of neighbours becomes a slice."""
    return tuple(axis_index(axis, length, plan) for axis, length in zip(tensor_axes, shape, strict=True))


def axis_index(axis: AxisLike, length: int, plan: Plan) -> Index | slice:
    """What the plan keeps of one axis; a run of neighbours as a slice, which makes views instead of copies."""
    kept = entries(axis, length, plan)
    return slice(None) if kept is None else _as_slice(kept)


def take(tensors: Mapping[str, Array], axes: Axes, plan: Plan) -> dict[str, Array]:
    """The submodel's tensors, as copies."""
    return {name: take_one(tensor, tensor_index(tensor.shape, axes[name], plan)) for name, tensor in tensors.items()}


def put(tensors: Mapping[str, Array], parts: Mapping[str, Array], axes: Axes, plan: Plan) -> dict[str, Array]:
    """Copies of `tensors` in which the plan's entries are replaced by the submodel's."""
    merged = {name: tensor.copy() for name, tensor in tensors.items()}
    for name, part in parts.items():
        index = tensor_index(merged[name].shape, axes[name], plan)
        merged[name][grid(merged[name].shape, index)] = part
    return merged


def take_one(tensor: Array, index: tuple[Index | slice, ...]) -> Array:
    """A copy of the entries at the outer product of the index."""
    part: Array = tensor[grid(tensor.shape, index)]
    return np.array(part, order="C")


def grid(shape: Sequence[int], index: tuple[Index | slice, ...]) -> tuple[Index | slice, ...]:
    """An index for numpy that means the outer product.

    Up to one array among slices already does; with more, arrays are opened as far as the last one, because numpy
    copies the axes behind it (kernels) in runs.
    """
    arrays = [position for position, part in enumerate(index) if not isinstance(part, slice)]
    if len(arrays) <= 1:
        return index
    behind = arrays[-1] + 1
    opened = [
        np.arange(length, dtype=np.int64)[part] if isinstance(part, slice) else part
        for part, length in zip(index[:behind], shape, strict=False)
    ]
    return (*np.ix_(*opened), *index[behind:])


def prefix_plan(full: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, Index]:
    """The first `sizes[group]` channels of every group (HeteroFL, HASA)."""
    _check_sizes(full, sizes)
    return {group: np.arange(size, dtype=np.int64) for group, size in sizes.items()}


def rolling_plan(full: Mapping[str, int], sizes: Mapping[str, int], offset: int) -> dict[str, Index]:
    """The window {(offset + j) mod C} of every group, sorted (FedRolex)."""
    _check_sizes(full, sizes)
    return {group: np.sort((offset + np.arange(size, dtype=np.int64)) % full[group]) for group, size in sizes.items()}


def random_plan(full: Mapping[str, int], sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Index]:
    """A random subset of every group, drawn once per group so that residual sums stay aligned (Federated Dropout)."""
    _check_sizes(full, sizes)
    return {
        group: np.sort(rng.choice(full[group], size, replace=False)).astype(np.int64)
        for group, size in sorted(sizes.items())
    }


def _check_sizes(full: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    for group, size in sizes.items():
        if group not in full:
            raise ConfigError(f"there is no channel group {group!r}; the model has {', '.join(sorted(full))}")
        if not 1 <= size <= full[group]:
            raise ConfigError(f"channel group {group!r} cannot have size {size}; choose 1 to {full[group]}")


def _expand(axis: Axis, size: int, kept: Index) -> Index:
    if axis.outer == axis.inner == 1:
        return kept
    outer = np.arange(axis.outer, dtype=np.int64)[:, None, None] * size
    inner = np.arange(axis.inner, dtype=np.int64)[None, None, :]
    return ((outer + kept[None, :, None]) * axis.inner + inner).reshape(-1)


def _joined(axis: Joined, plan: Plan) -> Index:
    picked: list[Index] = []
    start = 0
    for part, length in axis.parts:
        kept = entries(part, length, plan)
        picked.append(start + (np.arange(length, dtype=np.int64) if kept is None else kept))
        start += length
    return np.concatenate(picked)


def _parts(axis: AxisLike, length: int) -> list[tuple[Axis, int]]:
    if isinstance(axis, Joined):
        return [(part, size) for part, size in axis.parts if part is not None]
    return [] if axis is None else [(axis, length)]


def _as_slice(kept: Index) -> Index | slice:
    """A run of neighbours as a slice, anything else as it is."""
    start = int(kept[0])
    # Indices are sorted and distinct, so the ends tell whether anything is missing between them.
    return slice(start, start + len(kept)) if int(kept[-1]) - start + 1 == len(kept) else kept
