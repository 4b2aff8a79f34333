"""How blocks of unlike models can follow one another, by shape arithmetic alone.

A stitch stands where one block gives what the next does not take: ReLU(W'x + b) with a 1×1 convolution over a map that
is first fitted to the next block's size, or with a linear layer over a flat vector.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Kind = Literal["none", "map", "pooled", "flat", "dense"]

# A dense stitch of more weights becomes a 1×1 convolution: one between two large maps has hundreds of millions.
MOST_DENSE = 2_000_000


@dataclass(frozen=True)
class BlockShape:
    """One block of a model: what it takes and gives (shapes without the batch) and how many parameters it has.

    flat: it flattens or multiplies what it takes, so that a vector will do. head: it gives the classes.
    """

    takes: Shape
    gives: Shape
    flat: bool
    head: bool
    parameters: int


def is_map(shape: Shape) -> bool:
    """Channels with places, not a plain vector."""
    return len(shape) > 1


def stitch_kind(gives: Shape, part: BlockShape, *, dense: bool = False) -> Kind | None:
    """Which stitch stands between a shape and a part; None when nothing can: a vector before a convolution."""
    if gives == part.takes or (part.flat and gives == (math.prod(part.takes),)):
        return "none"
    if not is_map(gives):
        return "flat" if part.flat else None
    if is_map(part.takes) and (len(part.takes) != len(gives) or min(*gives, *part.takes) < 1):
        return None
    if dense and math.prod(gives) * math.prod(part.takes) <= MOST_DENSE:
        return "dense"
    return "map" if is_map(part.takes) else "pooled"


def stitch_parameters(gives: Shape, part: BlockShape, *, dense: bool = False) -> int:
    """How many weights and biases the stitch has."""
    kind = stitch_kind(gives, part, dense=dense)
    if kind in (None, "none"):
        return 0
    if kind == "map":
        return (gives[0] + 1) * part.takes[0]
    inputs = gives[0] * math.prod(pooled_places(gives, part)) if kind == "pooled" else math.prod(gives)
    return (inputs + 1) * math.prod(part.takes)


def part_work(part: BlockShape) -> int:
    """Multiplications of a block by the rule of thumb that every parameter meets every place of what it takes."""
    return part.parameters * math.prod(part.takes[1:])


def stitch_work(gives: Shape, part: BlockShape) -> int:
    """The same for the stitch before a part: a convolution works at every place of the fitted map, others once."""
    places = math.prod(part.takes[1:]) if stitch_kind(gives, part) == "map" else 1
    return stitch_parameters(gives, part) * places


def pooled_places(gives: Shape, part: BlockShape) -> Shape:
    """The size to which a map is pooled before it is flattened: the square whose width is nearest to what is taken."""
    rank = len(gives) - 1
    wanted = (math.prod(part.takes) / gives[0]) ** (1 / rank)
    sides = [side for side in (math.floor(wanted), math.ceil(wanted)) if side >= 1] or [1]
    best = min(sides, key=lambda side: abs(gives[0] * side**rank - math.prod(part.takes)))
    return (best,) * rank


def joins(parts: Sequence[BlockShape], source: Shape) -> bool:
    """Whether the parts can follow one another from an input on and end in a head, their only one."""
    if not parts or not parts[-1].head or any(part.head for part in parts[:-1]):
        return False
    return all(stitch_kind(gives, part) is not None for gives, part in _seams(parts, source))


def total_parameters(parts: Sequence[BlockShape], source: Shape, *, dense: bool = False) -> int:
    """Parameters of the parts and of all stitches between them."""
    stitches = sum(stitch_parameters(gives, part, dense=dense) for gives, part in _seams(parts, source))
    return stitches + sum(part.parameters for part in parts)


def _seams(parts: Sequence[BlockShape], source: Shape) -> Iterable[tuple[Shape, BlockShape]]:
    return zip([source, *(part.gives for part in parts[:-1])], parts, strict=True)


def fitting(length: int, wanted: int) -> NDArray[np.float32]:
    """[wanted, length]: row i is the mean over floor(i L/W) … ceil((i+1) L/W) - 1, as adaptive pooling takes it."""
    matrix = np.zeros((wanted, length), np.float32)
    for row in range(wanted):
        start, end = row * length // wanted, -(-(row + 1) * length // wanted)
        matrix[row, start:end] = 1.0 / (end - start)
    return matrix
