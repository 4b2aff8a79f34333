"""Stride and padding of kernels over weight images, made of kernels that go one step at a time and without padding.

A correlation with stride s and padding p of an image O gives o = (O + 2 p - k) / s + 1: pad the image, correlate, keep
every s-th place. Its transpose spreads what it is given by s, and what lies in the padding falls away. The image is
padded before the 1×1 pair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.fedconv.correlation import Filtering

Shape = tuple[int, int]


@dataclass(frozen=True)
class Steps:
    """cut: sides along which kernels go, -2, -1 or both; the others stay as they are."""

    stride: int
    padding: int
    cut: tuple[int, ...]

    def kernel(self, image: Shape, made: Shape) -> Shape:
        """The size of a kernel that makes one image of another: O + 2 p - s (o - 1) along each side that it changes."""
        height, width = (
            large + 2 * self.padding - self.stride * (small - 1) if dim in self.cut else large - small + 1
            for dim, large, small in zip((-2, -1), image, made, strict=True)
        )
        if min(height, width) < 1:
            raise ConfigError(
                f"kernels with stride {self.stride} and padding {self.padding} cannot make {made} of {image} channels; "
                "take a smaller stride, more padding or smaller ratios"
            )
        return height, width

    def dense(self, made: Shape) -> Shape:
        """What a kernel with stride 1 makes where this one makes `made`."""
        height, width = (
            self.stride * (small - 1) + 1 if dim in self.cut else small
            for dim, small in zip((-2, -1), made, strict=True)
        )
        return height, width

    def padded(self, images: Tensor) -> Tensor:
        """Images with zeros around them."""
        right, below = (self.padding if dim in self.cut else 0 for dim in (-1, -2))
        return functional.pad(images, (right, right, below, below)) if self.padding else images

    def larger(self, image: Shape) -> Shape:
        """The size of a padded image."""
        height, width = (
            side + 2 * self.padding if dim in self.cut else side for dim, side in zip((-2, -1), image, strict=True)
        )
        return height, width

    def spread(self, images: Tensor) -> Tensor:
        """Images with zeros between their entries."""
        if self.stride == 1:
            return images
        height, width = self.dense((images.shape[-2], images.shape[-1]))
        found = torch.zeros(*images.shape[:-2], height, width, dtype=images.dtype, device=images.device)
        rows, columns = self._every()
        found[..., rows, columns] = images
        return found

    def thinned(self, filtering: Filtering) -> Filtering:
        """The filtering with every s-th place of what it makes."""
        if self.stride == 1:
            return filtering
        rows, columns = self._every()
        return _then(filtering, lambda image: image[..., rows, columns])

    def trimmed(self, filtering: Filtering) -> Filtering:
        """The filtering without what lies in the padding."""
        if not self.padding:
            return filtering
        sides = [slice(self.padding, -self.padding) if dim in self.cut else slice(None) for dim in (-2, -1)]
        return _then(filtering, lambda image: image[..., sides[0], sides[1]])

    def _every(self) -> Sequence[slice]:
        return [slice(None, None, self.stride) if dim in self.cut else slice(None) for dim in (-2, -1)]


def _then(filtering: Filtering, change: Callable[[Tensor], Tensor]) -> Filtering:
    return lambda kernels, scale, shift: [change(image) for image in filtering(kernels, scale, shift)]
