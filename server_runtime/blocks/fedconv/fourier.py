"""Fourier transforms of weight images whose results are cropped: products with small matrices, or the usual FFT.

Along short sides (almost all layers of small models) a product with the cropped transform matrix beats an FFT that
computes everything and throws most of it away; along long sides the FFT wins.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# Sides up to this length are transformed by matrices.
SHORT = 160


@dataclass(frozen=True)
class Spectra:
    """Transforms of images of one size over the sides that are cut; one of them holds only half of the frequencies.

    image: (height, width). cut: which of the dimensions -2 and -1 are transformed, at least one.
    """

    image: tuple[int, int]
    cut: tuple[int, ...]
    device: str = "cpu"

    def forward(self, values: Tensor) -> Tensor:
        """The spectrum of [..., height, width] or of something smaller, which counts as padded with zeros."""
        half = self.cut[0]
        for dim in self.cut:
            values = self._forward(values, dim, half=dim == half)
        return values

    def inverse(self, values: Tensor, shape: tuple[int, int]) -> Tensor:
        """The first rows and columns, as many as `shape` says, of what has this spectrum."""
        for dim in reversed(self.cut):
            values = self._inverse(values, dim, shape[dim], half=dim == self.cut[0])
        return values

    def _forward(self, values: Tensor, dim: int, *, half: bool) -> Tensor:
        n = self.image[dim]
        if n > SHORT:
            made: Tensor = torch.fft.rfft(values, n, dim) if half else torch.fft.fft(values, n, dim)
            return made
        matrix = transform_matrix(n, half, self.device)[:, : values.shape[dim]]
        if not values.is_complex():
            values = values.to(matrix.dtype)
        return matrix @ values if dim == -2 else values @ matrix.T

    def _inverse(self, values: Tensor, dim: int, length: int, *, half: bool) -> Tensor:
        n = self.image[dim]
        if n > SHORT:
            whole: Tensor = torch.fft.irfft(values, n, dim) if half else torch.fft.ifft(values, n, dim)
            return whole.narrow(dim, 0, length)
        matrix = inverse_matrix(n, half, self.device)[:length]
        made = matrix @ values if dim == -2 else values @ matrix.T
        return made.real if half else made


@lru_cache(maxsize=256)
def transform_matrix(n: int, half: bool, device: str) -> Tensor:
    """F[f, x] = exp(-2πi f x / n), [n // 2 + 1 or n, n]."""
    frequencies = torch.arange(n // 2 + 1 if half else n, dtype=torch.float64)
    # The product is reduced first, so that angles stay exact for long sides.
    turns = (frequencies[:, None] * torch.arange(n, dtype=torch.float64)[None, :]) % n
    return torch.polar(torch.ones_like(turns), -2 * math.pi / n * turns).to(torch.complex64).to(device)


@lru_cache(maxsize=256)
def inverse_matrix(n: int, half: bool, device: str) -> Tensor:
    """exp(2πi f x / n) / n, [n, frequencies]; the frequencies that are left out count twice in their mirrors."""
    matrix = transform_matrix(n, half, device).conj().T / n
    if half:
        twice = torch.full((n // 2 + 1,), 2.0)
        twice[0] = 1.0
        if n % 2 == 0:
            twice[-1] = 1.0
        matrix = matrix * twice.to(device)
    return matrix.contiguous()
