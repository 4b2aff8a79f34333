"""Averages that a few wrong or hostile devices cannot move far, with the interface of the selective mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.averaging import SelectiveMean
from fedwright.server_runtime.blocks.mixing import Mix, mixed_rows, mixing
from fedwright.server_runtime.blocks.private_mean import CentralNoise, PrivateMean
from fedwright.server_runtime.blocks.slicing import Axes, Plan, grid, tensor_index
from fedwright.server_runtime.blocks.update_products import Products

Array = NDArray[Any]
Floats = NDArray[np.float64]
# Entries of one tensor that are compared over all devices at a time: bounds memory whatever the model's size.
PIECE = 1_000_000
Kind = Literal[
    "mean",
    "trimmed_mean",
    "median",
    "krum",
    "multi_krum",
    "majority",
    "outliers",
    "similarity",
    "centred_clipping",
    "norm_bound",
]

# What works where nothing is averaged, where changes are weighed but not put together entry by entry, and where both.
UNAVERAGED: tuple[Kind, ...] = ("mean", "norm_bound")
BY_ENTRY: tuple[Kind, ...] = (*UNAVERAGED, "median", "trimmed_mean")
BY_UPDATE: tuple[Kind, ...] = (*UNAVERAGED, "multi_krum", "majority", "outliers", "similarity", "centred_clipping")
ALL: tuple[Kind, ...] = (*BY_UPDATE, "median", "trimmed_mean", "krum")


@dataclass(frozen=True)
class Combine:
    """How updates become one: the weighted mean, or a form that a few wrong or hostile devices cannot move far.

    trimmed_mean, median: per entry, with one voice for every device; the trim_ratio smallest and as many largest
    values are left out. krum, multi_krum, majority, outliers, similarity, centred_clipping: the mean of those
    that robust_weights.py lets count; hostile_ratio: share of the devices that may be hostile. norm_bound: the mean of
    changes no longer than the median one. mix: what is done to updates before one of these looks at them (mixing.py).
    central: clip and noise in place of weights, for differential privacy.
    """

    kind: Kind = "mean"
    trim_ratio: float = 0.1
    hostile_ratio: float = 0.25
    central: CentralNoise | None = None
    mix: Mix = "none"

    def __post_init__(self) -> None:
        """Check values."""
        if not 0 <= self.trim_ratio < 0.5:
            raise ConfigError(f"trim_ratio is {self.trim_ratio} but must be from 0 to below 0.5")
        if not 0 <= self.hostile_ratio < 0.5:
            raise ConfigError(f"hostile_ratio is {self.hostile_ratio} but must be from 0 to below 0.5")

        if self.mix != "none" and self.kind in UNAVERAGED:
            raise ConfigError(
                f"mix is {self.mix!r} but combine is {self.kind!r}, which looks at each update alone; set combine to"
                f" one of {', '.join(kind for kind in ALL if kind not in UNAVERAGED)}"
            )

    @property
    def by_entry(self) -> bool:
        """Whether each entry of a tensor is put together by itself, which needs all updates at once."""
        return self.kind in ("trimmed_mean", "median")

    @property
    def weighs_updates(self) -> bool:
        """Whether whole updates are compared before the mean is made."""
        return self.kind not in (*BY_ENTRY, "mean")


class RobustMean:
    """Median or trimmed mean of each entry over the devices that trained it; others keep their value.

    Unlike a mean it needs all parts at once: memory is that of the updates themselves.
    """

    def __init__(self, current: Mapping[str, Array], axes: Axes, combine: Combine) -> None:
        self._current = current
        self._axes = axes
        self._combine = combine
        self._parts: dict[str, list[tuple[int, Array, Plan]]] = {}
        self._count = 0

    def add(self, part: Mapping[str, Array], plan: Plan, weight: float) -> None:
        """Take in what a device trained under this plan; its weight is not used."""
        for name, values in part.items():
            self._parts.setdefault(name, []).append((self._count, values, plan))
        self._count += 1

    def result(self) -> dict[str, Array]:
        """The new model."""
        shares = self._shares()
        return {name: self._finished(name, tensor, shares) for name, tensor in self._current.items()}

    def _shares(self) -> Floats | None:
        """How updates are mixed, if they are."""
        if self._combine.mix == "none":
            return None
        products = Products.of_rows(self._count, map(self._rows, sorted(self._parts)))
        return _mixing(products, self._combine)

    def _rows(self, name: str) -> Array:
        """One row for each device, NaN where it did not train the entry."""
        current = self._current[name]
        rows = np.full((self._count, *current.shape), np.nan, current.dtype)
        for place, values, plan in self._parts[name]:
            rows[place][grid(current.shape, tensor_index(current.shape, self._axes[name], plan))] = values
        return rows.reshape(self._count, -1)

    def _finished(self, name: str, current: Array, shares: Floats | None) -> Array:
        if name not in self._parts:
            return current.copy()
        rows, kept = self._rows(name), current.reshape(-1)
        result = np.empty_like(kept)
        step = max(1, PIECE // len(rows))
        for start in range(0, len(kept), step):
            piece = slice(start, start + step)
            values = rows[:, piece] if shares is None else mixed_rows(rows[:, piece], shares)
            result[piece] = _robust(values, kept[piece], self._combine)
        return result.reshape(current.shape)


Mean = SelectiveMean | RobustMean


def make_mean(combine: Combine, current: Mapping[str, Array], axes: Axes) -> Mean:
    """The average that the run's settings ask for."""
    if combine.central is not None:
        return PrivateMean(current, axes, combine.central)
    return RobustMean(current, axes, combine) if combine.by_entry else SelectiveMean(current, axes)


def mean_by_entry(rows: Sequence[Array], combine: Combine) -> Array:
    """The median or trimmed mean of each entry of arrays of one shape, NaN where one has none."""
    stacked = np.stack(rows)
    flat = stacked.reshape(len(rows), -1)
    if combine.mix != "none":
        flat = mixed_rows(flat, _mixing(Products.of_rows(len(rows), [flat]), combine))
    return _robust(flat, flat[0], combine).reshape(stacked.shape[1:])


def _mixing(products: Products, combine: Combine) -> Floats:
    distances = products.distances()
    return mixing(combine.mix, distances, hostile=int(combine.hostile_ratio * len(distances)))


def _robust(rows: Array, current: Array, combine: Combine) -> Array:
    """rows [devices, entries] with NaN for absent ones; sorted, so that the present ones come first."""
    ordered = np.sort(rows, axis=0)
    present = np.sum(~np.isnan(ordered), axis=0)
    cut = (present - 1) // 2 if combine.kind == "median" else (present * combine.trim_ratio).astype(np.int64)
    place = np.arange(len(rows))[:, None]
    inside = (place >= cut) & (place < present - cut)
    count = inside.sum(axis=0)
    total = np.where(inside, ordered, 0).sum(axis=0, dtype=np.float64)
    return np.where(present > 0, total / np.maximum(count, 1), current).astype(current.dtype)
