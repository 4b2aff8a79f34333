"""Kernels over weight images that stand still: correlations with stride 1 and without padding, or their transposes.

    y_j = s_j (K ∘ W_j) + b (K ∘ 1)        for every member its own s, b and K

Three ways give the same. Tiny images are unfolded into a matrix, which is one product for all members; short ones meet
bands; along long sides the Fourier transform is fastest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from fedwright.server_runtime.blocks.fedconv.band_products import Banded, Bands, Shape
from fedwright.server_runtime.blocks.fedconv.fourier import SHORT, Spectra

# Entries of an unfolded matrix: with more than a cache holds, the other ways are faster.
TINY = 250_000

Filtering = Callable[[Tensor, Tensor, Tensor], list[Tensor]]
"""K [M, k, *box] (zero where a member has no taps), s [M, k, P] and b [M, k] to every member's y [k, P, *shape]."""


@dataclass(frozen=True)
class Images:
    """What is filtered: [k, P, height, width], once for all members, or (transposed) of every member.

    shapes: what each member's become. box: room for the largest kernel. cut: sides that kernels change, -2, -1 or both.
    transposed: images grow, and the last of them is one of ones, which b multiplies.
    """

    given: Sequence[Tensor]
    shapes: Sequence[Shape]
    box: Shape
    cut: tuple[int, ...]
    transposed: bool

    @classmethod
    def shrinking(cls, images: Tensor, shapes: Sequence[Shape], box: Shape, cut: tuple[int, ...]) -> "Images":
        """For correlations of the same images with each member's kernels."""
        return cls([images], shapes, box, cut, transposed=False)

    @classmethod
    def growing(
        cls,
        images: Sequence[Tensor],
        shape: Shape,
        box: Shape,
        cut: tuple[int, ...],
        *,
        spread: Callable[[Tensor], Tensor] = lambda image: image,
    ) -> "Images":
        """For transposed correlations of each member's images, spread out, with its own kernels."""
        given = [spread(functional.pad(own, (0, 0, 0, 0, 0, 1), value=1.0)) for own in images]
        return cls(given, [shape] * len(given), box, cut, transposed=True)

    def filtering(self) -> Filtering:
        """The fastest way."""
        if len(self.given) * prod(self.given[0].shape[:2]) * prod(self.largest) * prod(self.box) <= TINY:
            return unfolded(self)
        if len(self.cut) == 2 and max(self.whole) <= SHORT:
            return banded(self)
        return transformed(self)

    @property
    def largest(self) -> Shape:
        """The height and the width that no new image exceeds."""
        return max(height for height, _ in self.shapes), max(width for _, width in self.shapes)

    @property
    def whole(self) -> Shape:
        """Height and width of the larger images."""
        return self.largest if self.transposed else (self.given[0].shape[-2], self.given[0].shape[-1])

    def scaled(self, made: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """y from K ∘ W [..., P, height, width], s [..., P] and b K ∘ 1, a number [...] unless images grow."""
        scale, shift = scale[..., None, None], shift[..., None, None, None]
        if not self.transposed:
            return torch.addcmul(shift, made, scale)
        own, ones = torch.split(made, [made.shape[-3] - 1, 1], dim=-3)
        return torch.addcmul(shift * ones, own, scale)


def unfolded(images: Images) -> Filtering:
    """One product for all members with a matrix of shifted images; what lies outside of an image is zero."""
    stack = torch.stack([_windows(images, own) for own in images.given])
    kinds, count, taps, _ = stack.shape
    matrix = stack.flatten(0, 1)

    def made(kernels: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
        rows = kernels.reshape(kinds, -1, count, taps).transpose(1, 2).flatten(0, 1)
        found = torch.bmm(rows, matrix).view(kinds, count, -1, images.given[0].shape[1], *images.largest)
        if not images.transposed:
            shift = shift * kernels.sum((-2, -1))
        every = images.scaled(found.transpose(1, 2).flatten(0, 1), scale, shift).unbind(0)
        return [_cropped(own, shape) for own, shape in zip(every, images.shapes, strict=True)]

    return made


def _windows(images: Images, own: Tensor) -> Tensor:
    """[k, taps, P · height · width]: what each tap of a kernel meets."""
    (height, width), (tall, wide) = images.box, images.largest
    top, left = (height - 1, width - 1) if images.transposed else (0, 0)
    below, right = tall + height - 1 - top - own.shape[-2], wide + width - 1 - left - own.shape[-1]
    padded = functional.pad(own, (left, right, top, below))
    windows = padded.unfold(-2, height, 1).unfold(-2, width, 1).flatten(-2)
    if images.transposed:
        windows = windows.flip(-1)
    return windows.permute(0, 4, 1, 2, 3).flatten(2).contiguous()


def _cropped(image: Tensor, shape: Shape) -> Tensor:
    for dim in (-2, -1):
        if image.shape[dim] > shape[dim]:
            image = image.narrow(dim, 0, shape[dim])
    return image


def banded(images: Images) -> Filtering:
    """Products with bands."""
    return _banded_growing(images) if images.transposed else _banded_shrinking(images)


def _banded_growing(images: Images) -> Filtering:
    bands = [Bands(own, [shape], images.box, True) for own, shape in zip(images.given, images.shapes, strict=True)]

    def made(kernels: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
        every = zip(bands, torch.split(kernels, 1), scale.unbind(0), shift.unbind(0), strict=True)
        return [images.scaled(_product(own, k).transpose(1, 2), s, b) for own, k, s, b in every]

    return made


def _banded_shrinking(images: Images) -> Filtering:
    """All members are side by side until the end."""
    bands = Bands(images.given[0], images.shapes, images.box, False)
    # [M, widths]: which columns are whose.
    owners = torch.repeat_interleave(torch.eye(len(bands.widths)), torch.tensor(bands.widths), dim=1)
    owners = owners.to(bands.images.device)

    def made(kernels: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
        # Numbers for every column, so that one pass over [k, height, P, widths] serves all members.
        s, b = scale.permute(1, 2, 0) @ owners, (shift * kernels.sum((-2, -1))).T @ owners
        found = torch.addcmul(b[:, None, None], _product(bands, kernels), s[:, None])
        every = zip(torch.split(found, bands.widths, dim=-1), images.shapes, strict=True)
        return [_cropped(own.transpose(1, 2), shape) for own, shape in every]

    return made


def _product(bands: Bands, kernels: Tensor) -> Tensor:
    return Banded.apply(kernels, bands)  # type: ignore[no-any-return, no-untyped-call]


def transformed(images: Images) -> Filtering:
    """Products of spectra; what wraps around lies outside of what is kept."""
    spectra = Spectra(images.whole, images.cut, str(images.given[0].device))
    given = [spectra.forward(own) for own in images.given] * (len(images.shapes) // len(images.given))

    def made(kernels: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
        rows = spectra.forward(kernels).unsqueeze(-3)
        if not images.transposed:
            rows, shift = rows.conj(), shift * kernels.sum((-2, -1))
        every = zip(given, images.shapes, rows.unbind(0), scale.unbind(0), shift.unbind(0), strict=True)
        return [images.scaled(spectra.inverse(own * row, shape), s, b) for own, shape, row, s, b in every]

    return made
