"""Fourier transforms in terms of products with cosines and sines; in force while a module is traced.

A graph has no complex numbers: one is a pair of tensors here, for as long as nobody asks for its parts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwright.server_runtime.artifacts.plain_forms import plain

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pair:
    """A complex tensor as its real and imaginary part."""

    real: torch.Tensor
    imag: torch.Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Functions that know pairs are registered here; all others do not."""
        return NotImplemented

    def __add__(self, other: Any) -> "Pair":
        right = _pair(other)
        return Pair(self.real + right.real, self.imag + right.imag)

    def __sub__(self, other: Any) -> "Pair":
        right = _pair(other)
        return Pair(self.real - right.real, self.imag - right.imag)

    def __mul__(self, other: Any) -> "Pair":
        if isinstance(other, int | float) or (isinstance(other, torch.Tensor) and not other.is_complex()):
            return Pair(self.real * other, self.imag * other)
        right = _pair(other)
        return Pair(self.real * right.real - self.imag * right.imag, self.real * right.imag + self.imag * right.real)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, key: Any) -> "Pair":
        return Pair(self.real[key], self.imag[key])

    @property
    def shape(self) -> Any:
        """Sizes of either part."""
        return self.real.shape

    def dim(self) -> int:
        """Number of axes."""
        return self.real.dim()

    def abs(self) -> torch.Tensor:
        """Length."""
        return (self.real * self.real + self.imag * self.imag).sqrt()

    def conj(self) -> "Pair":
        """With the other sign of the imaginary part."""
        return Pair(self.real, -self.imag)


def _pair(value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    if isinstance(value, torch.Tensor) and value.is_complex():
        return Pair(value.real, value.imag)
    return Pair(value, torch.zeros_like(value) if isinstance(value, torch.Tensor) else torch.tensor(0.0))


def _matrices(rows: int, columns: int, size: int, weights: Array | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of 2 pi k n / size."""
    angles = np.outer(np.arange(rows), np.arange(columns)) % size * (2 * np.pi / size)
    factors = np.ones((rows, 1)) if weights is None else weights.reshape(-1, 1)
    cosines, sines = ((factors * part).astype(np.float32) for part in (np.cos(angles), np.sin(angles)))
    return torch.from_numpy(cosines), torch.from_numpy(sines)


def _share(size: int, norm: str | None, *, back: bool) -> float:
    """What a transform along one axis is multiplied by."""
    whole = "backward" if back else "forward"
    return size**-0.5 if norm == "ortho" else 1.0 / size if (norm or "backward") == whole else 1.0


def _transformed(x: Pair, axis: int, norm: str | None, *, back: bool) -> Pair:
    """sum over n of x_n e^(-2 pi i k n / N) along one axis, with + where it goes back."""
    size = int(x.shape[axis])
    cosines, sines = _matrices(size, size, size, np.full(size, _share(size, norm, back=back)))
    if not back:
        sines = -sines
    real, imag = (part.movedim(axis, -1) for part in (x.real, x.imag))
    made = real @ cosines - imag @ sines, real @ sines + imag @ cosines
    return Pair(*(part.movedim(-1, axis) for part in made))


def _all_axes(x: Pair, axes: list[int], norm: str | None, *, back: bool) -> Pair:
    for axis in axes:
        x = _transformed(x, axis, norm, back=back)
    return x


def _axes_of(x: Any, size: Any, dim: Any, count: int | None) -> list[int] | None:
    """The axes of a transform that keeps sizes; None where it cuts, pads or mixes samples."""
    axes = [dim] if isinstance(dim, int) else list(range(-count, 0)) if dim is None and count else list(dim or ())
    known = [axis % x.dim() for axis in axes]
    wanted = [size] if isinstance(size, int) else size
    if not known or 0 in known:
        return None
    return known if wanted is None or list(wanted) == [int(x.shape[axis]) for axis in known] else None


def _of_complex(count: int | None, *, back: bool) -> Any:
    def form(x: Any, size: Any = None, dim: Any = None, norm: str | None = None, **named: Any) -> Any:
        size = named.get("n", named.get("s", size))
        axes = _axes_of(x, size, dim, count)
        return NotImplemented if axes is None else _all_axes(_pair(x), axes, norm, back=back)

    return form


def _of_real(count: int | None) -> Any:
    def form(x: Any, size: Any = None, dim: Any = None, norm: str | None = None, **named: Any) -> Any:
        size = named.get("n", named.get("s", size))
        axes = _axes_of(x, size, dim, count)
        if axes is None:
            return NotImplemented
        long = int(x.shape[axes[-1]])
        made = _all_axes(_pair(x), axes[::-1], norm, back=False)
        return Pair(*(part.narrow(axes[-1], 0, long // 2 + 1) for part in (made.real, made.imag)))

    return form


def _to_real(count: int | None) -> Any:
    def form(x: Any, size: Any = None, dim: Any = None, norm: str | None = None, **named: Any) -> Any:
        size = named.get("n", named.get("s", size))
        axes = _axes_of(x, None, dim, count)
        if axes is None:
            return NotImplemented
        last, given = axes[-1], int(x.shape[axes[-1]])
        wanted = [size] if isinstance(size, int) else size
        long = 2 * (given - 1) if wanted is None else int(wanted[-1])
        if long // 2 + 1 != given or (
            wanted is not None and [int(x.shape[at]) for at in axes[:-1]] != list(wanted)[:-1]
        ):
            return NotImplemented
        half = _all_axes(_pair(x), axes[:-1], norm, back=True)
        # Each frequency but the first, and the middle one of an even length, stands for its mirror image too.
        weights = np.array([1.0 if k == 0 or 2 * k == long else 2.0 for k in range(given)])
        cosines, sines = _matrices(given, long, long, weights * _share(long, norm, back=True))
        real, imag = (part.movedim(last, -1) for part in (half.real, half.imag))
        return (real @ cosines - imag @ sines).movedim(-1, last)

    return form


for _names, _maker in (
    (("fft", "fft2", "fftn"), lambda count: _of_complex(count, back=False)),
    (("ifft", "ifft2", "ifftn"), lambda count: _of_complex(count, back=True)),
    (("rfft", "rfft2", "rfftn"), _of_real),
    (("irfft", "irfft2", "irfftn"), _to_real),
):
    for _name, _count in zip(_names, (1, 2, None), strict=True):
        plain(getattr(torch.fft, _name))(_maker(_count))


@plain(torch.view_as_complex)
def _view_as_complex(x: torch.Tensor) -> Any:
    return Pair(x[..., 0], x[..., 1])


@plain(torch.view_as_real)
def _view_as_real(x: Any) -> Any:
    return torch.stack([x.real, x.imag], -1) if isinstance(x, Pair) else NotImplemented


@plain(torch.complex)
def _complex(real: torch.Tensor, imag: torch.Tensor) -> Any:
    return Pair(real, imag)


@plain(torch.abs, torch.absolute)
def _abs(x: Any) -> Any:
    return x.abs() if isinstance(x, Pair) else NotImplemented


@plain(torch.real)
def _real(x: Any) -> Any:
    return x.real if isinstance(x, Pair) else NotImplemented


@plain(torch.imag)
def _imag(x: Any) -> Any:
    return x.imag if isinstance(x, Pair) else NotImplemented
