"""What is known of a tensor of a graph before it runs: its shape, and how it depends on the samples of a batch.

Samples may be told apart by what they are, never by where they stand. Kinds, from harmless to not:

    FIXED    does not depend on samples; along an axis of samples it is the same for all of them
    SUM      the same, made of sums over all samples
    PLACED   does not depend on samples, but tells their places apart (a mask of the first row, a range)
    LINKS    pairs of places that the data itself holds (the edges of a graph), as they came
    ROWS     one entry (or several) for each sample, each made in the same way of that sample and of sums
    SINGLE   single samples may be in it, or nobody knows
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """How a tensor depends on samples."""

    FIXED = 0
    SUM = 1
    PLACED = 2
    LINKS = 3
    ROWS = 4
    SINGLE = 5


class Rows(NamedTuple):
    """An axis over samples, of length outer x samples x inner, in this order of counting."""

    outer: int = 1
    inner: int = 1
    of: str = "batch"

    @property
    def length(self) -> "Length":
        """Its length."""
        return Length(self.outer * self.inner, self.of)


class Length(NamedTuple):
    """A number that is a multiple of how many samples there are."""

    times: int
    of: str = "batch"


Dim = int | Rows | None
Number = int | Length | None


class Value(NamedTuple):
    """A tensor; dims None is a rank that is not known, and so is a None in place of a dim.

    numbers: its entries, flat, where they are few and known. scales: the same of fractions. why: how single samples
    got into it.
    """

    kind: Kind
    dims: tuple[Dim, ...] | None = None
    numbers: tuple[Number, ...] | None = None
    scales: tuple[float, ...] | None = None
    why: str = ""

    @property
    def rank(self) -> int | None:
        """How many axes it has."""
        return None if self.dims is None else len(self.dims)

    def rows_axis(self) -> int | None:
        """The axis over samples; None when there is none."""
        return next((at for at, dim in enumerate(self.dims or ()) if isinstance(dim, Rows)), None)


def as_numbers(dims: Sequence[Dim]) -> tuple[Number, ...]:
    """A shape as the operator Shape tells it."""
    return tuple(dim.length if isinstance(dim, Rows) else dim for dim in dims)


def product(dims: Sequence[Dim]) -> int | None:
    """Entries of a shape without samples; None when that is not known."""
    known = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(known) if len(known) == len(dims) else None


def spoilt(inputs: Sequence[Value], why: str) -> Value:
    """What comes of an operation that is not followed: as harmless as what went in allows."""
    worst = max((value.kind for value in inputs), default=Kind.FIXED)
    first = next((value.why for value in inputs if value.why), why)
    if worst >= Kind.LINKS:
        return Value(Kind.SINGLE, why=first)
    if worst == Kind.PLACED or any(value.rows_axis() is not None for value in inputs):
        # Entries beside one another along the samples may differ now.
        summed = any(value.kind == Kind.SUM for value in inputs)
        return Value(Kind.SINGLE, why=first) if summed else Value(Kind.PLACED)
    return Value(worst)


def broadcast(inputs: Sequence[Value], why: str) -> Value:
    """Entry by entry, with the usual stretching of axes of length one."""
    if any(value.dims is None for value in inputs):
        return spoilt(inputs, why)
    dims = stretched([value.dims or () for value in inputs])
    if dims is None:
        return spoilt(inputs, f"{why} pairs samples with entries that are told apart by their place")
    return with_dims(inputs, dims, why)


def stretched(shapes: Sequence[Sequence[Dim]]) -> list[Dim] | None:
    """The shape that all stretch to; None where an axis over samples meets another one, or entries by place."""
    dims: list[Dim] = []
    for at in range(-max(map(len, shapes), default=0), 0):
        met = {shape[at] for shape in shapes if len(shape) >= -at} - {1}
        if len(met) > 1 and any(isinstance(dim, Rows) for dim in met):
            return None
        dims.append(met.pop() if len(met) == 1 else (1 if not met else _same_int(met)))
    return dims


def _same_int(met: set[Dim]) -> Dim:
    """Of unlike lengths the runtime accepts none; with an unknown one the other counts."""
    known = met - {None}
    return known.pop() if len(known) == 1 else None


def with_dims(inputs: Sequence[Value], dims: Sequence[Dim], why: str) -> Value:
    """A tensor of this shape, each entry made of entries of the inputs at the same sample."""
    if sum(isinstance(dim, Rows) for dim in dims) > 1:
        return spoilt(inputs, f"{why} pairs each sample with each other one")
    worst = max((value.kind for value in inputs), default=Kind.FIXED)
    if worst in (Kind.SINGLE, Kind.LINKS):
        return spoilt(inputs, why)
    kinds = {value.kind for value in inputs}
    if Kind.PLACED in kinds and kinds & {Kind.ROWS, Kind.SUM}:
        return spoilt(inputs, f"{why} picks samples by their place")
    if worst == Kind.ROWS and not any(isinstance(dim, Rows) for dim in dims):
        return spoilt(inputs, why)
    return Value(worst, tuple(dims))
