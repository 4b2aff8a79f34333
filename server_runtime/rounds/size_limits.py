"""How large a change may be beside those of other devices: as a whole, and in each of its tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS, MEASURED
from fedwright.server_runtime.methods.base import Array, Tensors

# Fewer changes have no median that one of them could not move.
LEAST_FOR_MEDIAN = 3
# Single tensors differ more from device to device than whole changes do.
TENSOR_SLACK = 2.0


@dataclass(frozen=True)
class TensorSize:
    """The norm of something and how many entries it has."""

    norm: float
    entries: int

    @property
    def mean(self) -> float:
        """Root mean square."""
        return self.norm / math.sqrt(self.entries) if self.entries else 0.0


@dataclass(frozen=True)
class ChangeSize:
    """The size of a whole change, without what was measured, and of each tensor of an update."""

    whole: TensorSize
    tensors: Mapping[str, TensorSize]

    @classmethod
    def of(cls, values: Mapping[str, Array]) -> "ChangeSize":
        """Of an update's tensors; counts are claims, not sizes."""
        kept = {name: value for name, value in values.items() if name != CLASS_COUNTS and value.dtype.kind == "f"}
        found = {name: TensorSize(_norm(value), value.size) for name, value in kept.items()}
        if CLASS_MEANS in kept:
            # Rows of classes that the device lacks are zero and say nothing.
            found[CLASS_MEANS] = TensorSize(
                found[CLASS_MEANS].norm, int(np.count_nonzero(kept[CLASS_MEANS].any(axis=1)))
            )
        return cls(_joined(found), found)

    def scaled(self, factors: Mapping[str, float]) -> "ChangeSize":
        """With each tensor so many times as large."""
        found = {name: TensorSize(size.norm * factors[name], size.entries) for name, size in self.tensors.items()}
        return ChangeSize(_joined(found), found)


@dataclass(frozen=True)
class SizeLimit:
    """How large something may be, by its norm or by its root mean square, whichever allows more.

    Of submodels the wide ones have more entries and the narrow ones move each further.
    """

    norm: float
    mean: float

    @classmethod
    def of(cls, sizes: Sequence[TensorSize], factor: float) -> "SizeLimit":
        """So many times the medians."""
        return cls(
            factor * lower_median([size.norm for size in sizes]), factor * lower_median([size.mean for size in sizes])
        )

    def factor(self, size: TensorSize) -> float:
        """What to multiply something of this size with; medians of zero limit nothing."""
        most = max(self.norm, self.mean * math.sqrt(size.entries))
        return most / size.norm if 0 < most < size.norm else 1.0


@dataclass(frozen=True)
class SizeLimits:
    """Of a whole change, and of single tensors."""

    whole: SizeLimit
    tensors: Mapping[str, SizeLimit]

    def held(self, values: Tensors, size: ChangeSize | None = None) -> Tensors:
        """An update within these limits: itself, or with what is too large scaled down. size: of it, where known."""
        factors = self._factors(size or ChangeSize.of(values))
        scaled = {name: values[name] * values[name].dtype.type(f) for name, f in factors.items() if f < 1}
        return values | scaled if scaled else values

    def held_size(self, size: ChangeSize) -> ChangeSize:
        """What `held` makes of an update of this size."""
        return size.scaled(self._factors(size))

    def _factors(self, size: ChangeSize) -> dict[str, float]:
        found = {name: limit.factor(size.tensors[name]) for name, limit in self.tensors.items() if name in size.tensors}
        factors = {name: found.get(name, 1.0) for name in size.tensors}
        whole = self.whole.factor(size.scaled(factors).whole)
        return {name: f if name in MEASURED else f * whole for name, f in factors.items()}


def limits_of(sizes: Sequence[ChangeSize], factor: float | None, *, least: int = LEAST_FOR_MEDIAN) -> SizeLimits | None:
    """`factor` times the lower medians of these; None where that says nothing.

    A tensor that most devices hardly move may reach what a whole change reaches.
    """
    if factor is None or len(sizes) < least:
        return None
    whole = SizeLimit.of([size.whole for size in sizes], factor)
    limits: dict[str, SizeLimit] = {}
    for name in sorted({name for size in sizes for name in size.tensors}):
        having = [size.tensors[name] for size in sizes if name in size.tensors and size.tensors[name].entries]
        if len(having) >= least and name in MEASURED:
            limits[name] = SizeLimit.of(having, factor)
        elif len(having) >= least:
            own = SizeLimit.of(having, TENSOR_SLACK * factor)
            limits[name] = SizeLimit(own.norm, max(own.mean, TENSOR_SLACK * whole.mean))
    return SizeLimits(whole, limits)


def held_counts(values: Tensors, most: int | None) -> Tensors:
    """Class means whose counts are of no more samples than a device may count for."""
    if most is None or CLASS_COUNTS not in values:
        return values
    total = float(values[CLASS_COUNTS].sum(dtype=np.float64))
    return (
        values
        if total <= most
        else values | {CLASS_COUNTS: values[CLASS_COUNTS] * values[CLASS_COUNTS].dtype.type(most / total)}
    )


def lower_median(values: Sequence[float]) -> float:
    """The median; of an even number the lower of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]


def _joined(sizes: Mapping[str, TensorSize]) -> TensorSize:
    learnt = [size for name, size in sizes.items() if name not in MEASURED]
    return TensorSize(math.sqrt(sum(size.norm**2 for size in learnt)), sum(size.entries for size in learnt))


def _norm(value: Array) -> float:
    flat = value.reshape(-1)
    found = float(np.vdot(flat, flat))
    return math.sqrt(found if math.isfinite(found) else float(np.square(flat, dtype=np.float64).sum()))
