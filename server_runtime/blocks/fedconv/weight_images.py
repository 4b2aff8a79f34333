"""Weights as images: a tensor is J matrices whose sides are channel groups.

    convolution [O, I, kh, kw]      kh·kw matrices [O, I]        depthwise [C, 1, kh, kw]   kh·kw of [C, 1]
    flatten → linear [O, C·H·W]     H·W matrices [O, C]          linear [O, I]              one [O, I]
    LSTM gates [4·H, I]             4 matrices [H, I]            bias, norm [O]             one [1, O]

The sides are the axes that have a channel group, filled up with the first fixed axes; whatever else an axis holds
(kernel positions, map positions, gates, heads) counts the matrices. Concatenated channels are one piece per part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from fedwright.server_runtime.blocks.slicing import Axes, Axis, Joined, TensorAxes

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Side:
    """One axis as (outer, C, inner); C is the size of the group, or `length` on an axis that is never cut."""

    axis: Axis | None
    length: int

    def split(self, sizes: Sizes) -> tuple[int, int, int]:
        """(outer, C, inner) at these sizes."""
        if self.axis is None:
            return 1, self.length, 1
        return self.axis.outer, sizes[self.axis.group], self.axis.inner

    def total(self, sizes: Sizes) -> int:
        """Entries of the axis at these sizes."""
        return prod(self.split(sizes))


@dataclass(frozen=True)
class ImagePiece:
    """A tensor, or the part of it that lies between concatenated channels, as images.

    part: which of the concatenated parts, one number per such axis. rows, columns: the axes that are the image's sides
    (rows = -1 for a vector, which is one row).
    """

    name: str
    part: tuple[int, ...]
    sides: tuple[Side, ...]
    rows: int
    columns: int

    @property
    def cut(self) -> tuple[int, ...]:
        """Dimensions of the image, counted from the end, that have a channel group."""
        return tuple(dim for dim in (-2, -1) if self.group(dim) is not None)

    def group(self, dim: int) -> str | None:
        """The channel group of one dimension of the image."""
        number = (self.rows, self.columns)[dim]
        axis = self.sides[number].axis if number >= 0 else None
        return None if axis is None else axis.group

    def shape(self, sizes: Sizes) -> tuple[int, int]:
        """Height and width of an image."""
        height = 1 if self.rows < 0 else self.sides[self.rows].split(sizes)[1]
        return height, self.sides[self.columns].split(sizes)[1]

    def count(self, sizes: Sizes) -> int:
        """J, which does not depend on the sizes."""
        height, width = self.shape(sizes)
        return prod(side.total(sizes) for side in self.sides) // (height * width)

    def images(self, values: Tensor, sizes: Sizes) -> Tensor:
        """A piece of a tensor as [J, height, width]."""
        order = self._order()
        return values.reshape(self._long(sizes)).permute(order).reshape(-1, *self.shape(sizes))

    def tensor(self, images: Tensor, sizes: Sizes) -> Tensor:
        """What `images` was made of."""
        long = self._long(sizes)
        # Sides of length 1 need no place of their own; most tensors are in order without them.
        order = [position for position in self._order() if long[position] > 1]
        if order != sorted(order):
            back = [order.index(position) for position in sorted(order)]
            images = images.reshape([long[position] for position in order]).permute(back)
        return images.reshape(self.full(sizes))

    def full(self, sizes: Sizes) -> tuple[int, ...]:
        """The piece's own shape."""
        return tuple(side.total(sizes) for side in self.sides)

    def _long(self, sizes: Sizes) -> list[int]:
        return [size for side in self.sides for size in side.split(sizes)]

    def _order(self) -> list[int]:
        """Positions in the long shape with the image's sides last."""
        last = [3 * axis + 1 for axis in (self.rows, self.columns) if axis >= 0]
        return [position for position in range(3 * len(self.sides)) if position not in last] + last


def pieces_of(axes: Axes, shapes: Mapping[str, Sequence[int]]) -> list[ImagePiece]:
    """The pieces of all tensors that have a channel group, in the order of `shapes`."""
    found: list[ImagePiece] = []
    for name, shape in shapes.items():
        for part, sides in _parts(axes[name], shape):
            grouped = [number for number, side in enumerate(sides) if side.axis is not None][:2]
            if grouped:
                fixed = [number for number, side in enumerate(sides) if side.axis is None]
                chosen = sorted((grouped + fixed)[:2])
                found.append(ImagePiece(name, part, sides, chosen[0] if len(chosen) > 1 else -1, chosen[-1]))
    return found


def assemble_weights(axes: TensorAxes, piece: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """A tensor from its pieces, which are joined along the axes of concatenated channels."""
    joined = [(number, axis) for number, axis in enumerate(axes) if isinstance(axis, Joined)]

    def build(part: tuple[int, ...]) -> Tensor:
        if len(part) == len(joined):
            return piece(part)
        number, axis = joined[len(part)]
        return torch.cat([build((*part, index)) for index in range(len(axis.parts))], dim=number)

    return build(())


def extract(axes: TensorAxes, values: Tensor, part: tuple[int, ...], sizes: Sizes) -> Tensor:
    """The part of a tensor that a piece stands for."""
    joined = [(number, axis) for number, axis in enumerate(axes) if isinstance(axis, Joined)]
    for (number, axis), index in zip(joined, part, strict=True):
        lengths = [Side(inner, length).total(sizes) for inner, length in axis.parts]
        values = values.narrow(number, sum(lengths[:index]), lengths[index])
    return values


def _parts(axes: TensorAxes, shape: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[Side, ...]]]:
    choices: list[list[tuple[int | None, Side]]] = []
    for axis, length in zip(axes, shape, strict=True):
        if isinstance(axis, Joined):
            choices.append([(index, Side(inner, size)) for index, (inner, size) in enumerate(axis.parts)])
        else:
            choices.append([(None, Side(axis, length))])
    return [
        (tuple(index for index, _ in chosen if index is not None), tuple(side for _, side in chosen))
        for chosen in product(*choices)
    ]
