"""Kernels over short weight images as products of real matrices, with gradients for the kernels alone.

Rows are transformed, columns are not. At every frequency of the rows a kernel is a band B with B[x, x + q] = K^[q],
which all images meet in one product: a correlation is W^ conj(B)ᵀ, its transpose W^ B. Bands of several members stand
side by side. Complex numbers are pairs of real ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedwright.server_runtime.blocks.fedconv.fourier import inverse_matrix, transform_matrix

Shape = tuple[int, int]


@dataclass(frozen=True)
class Bands:
    """How images [k, P, height, width] meet the kernels [M, k, *box] of M members; one member if they are transposed.

    shapes: what the images become for each member. There are R frequencies.
    """

    images: Tensor
    shapes: Sequence[Shape]
    box: Shape
    transposed: bool

    @cached_property
    def widths(self) -> list[int]:
        """Columns of each member's new images."""
        return [width for _, width in self.shapes]

    def filtered(self, kernels: Tensor) -> Tensor:
        """The images of all members side by side, [k, height, P, widths]; lower ones have rows to spare."""
        spectra = torch.matmul(self._into, kernels)
        band = kernels.new_zeros(self._band)
        for diagonals, own in zip(self._diagonals(band), spectra.unbind(0), strict=True):
            diagonals.copy_(own.view(len(band), 2, 1, -1)[..., : diagonals.shape[-1]])
        mixed = torch.bmm(self._spectra, band if self.transposed else band.mT)
        made = torch.matmul(self._back, mixed.view(len(self.images), self._back.shape[1], -1))
        return made.view(*made.shape[:2], -1, mixed.shape[-1])

    def gradient(self, made: Tensor) -> Tensor:
        """That of the kernels, from that of what `filtered` made."""
        rows = torch.matmul(self._back.T, made.reshape(*made.shape[:2], -1))
        mixed = rows.view(*self._spectra.shape[:2], -1)
        band = torch.bmm(self._spectra.mT, mixed) if self.transposed else torch.bmm(mixed.mT, self._spectra)
        spectra = band.new_zeros(len(self.shapes), len(band), 2, self.box[1])
        for diagonals, own in zip(self._diagonals(band), spectra.unbind(0), strict=True):
            torch.sum(diagonals, 2, out=own[..., : diagonals.shape[-1]])
        return torch.matmul(self._into.T, spectra.view(len(self.shapes), len(made), -1, self.box[1]))

    @cached_property
    def _rows(self) -> int:
        return max(self.images.shape[-2], *(height for height, _ in self.shapes))

    @cached_property
    def _into(self) -> Tensor:
        """The transform of a kernel's rows, [2 R, box height]."""
        forth = torch.view_as_real(transform_matrix(self._rows, True, str(self.images.device))[:, : self.box[0]])
        return forth.transpose(1, 2).flatten(0, 1).contiguous()

    @cached_property
    def _back(self) -> Tensor:
        """Its inverse for the highest of the new images, [height, 2 R]."""
        height = max(height for height, _ in self.shapes)
        back = inverse_matrix(self._rows, True, str(self.images.device))[:height]
        # The real part of a product: that of two pairs, one of them conjugate.
        return torch.view_as_real(back.conj().resolve_conj()).flatten(1)

    @cached_property
    def _spectra(self) -> Tensor:
        """The images' own, [k R, 2 P, 2 width]."""
        forth = transform_matrix(self._rows, True, str(self.images.device))[:, : self.images.shape[-2]]
        made = (forth @ self.images.to(forth.dtype)).transpose(1, 2).flatten(0, 1)
        re, im, sign = made.real, made.imag, -1 if self.transposed else 1
        # (re + i im) times x + i y, or times x - i y, is this matrix times (x, y).
        return torch.cat([torch.cat([re, sign * im], -1), torch.cat([im, -sign * re], -1)], -2)

    @cached_property
    def _band(self) -> tuple[int, int, int]:
        """[k R, 2 width, new width] if transposed, else [k R, new widths, 2 width]."""
        frequencies, _, columns = self._spectra.shape
        total = sum(self.widths)
        return (frequencies, columns, total) if self.transposed else (frequencies, total, columns)

    def _diagonals(self, band: Tensor) -> list[Tensor]:
        """Where each member's band is not zero, [k R, 2, smaller width, w]."""
        given, step = self.images.shape[-1], band.stride(0)
        if self.transposed:
            (wide,) = self.widths
            return [band.as_strided((len(band), 2, given, wide - given + 1), (step, given * wide, wide + 1, 1))]
        starts = accumulate(self.widths, initial=0)
        return [
            band.as_strided(
                (len(band), 2, width, given - width + 1), (step, given, 2 * given + 1, 1), 2 * given * start
            )
            for start, width in zip(starts, self.widths, strict=False)
        ]


class Banded(torch.autograd.Function):
    """`Bands.filtered` with its gradient."""

    @staticmethod
    def forward(ctx: Any, kernels: Tensor, bands: Bands) -> Tensor:
        """[k, height, P, widths]."""
        ctx.bands = bands
        return bands.filtered(kernels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, made: Tensor) -> tuple[Tensor, None]:
        """The gradient of the kernels."""
        return ctx.bands.gradient(made), None
