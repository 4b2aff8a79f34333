"""Compression: small models whose weights are convolutions of a large model's weight images (FedConv).

    w_j = MLR((1 + a) ω_j (K ⋆ W_j) + b ΣK)        W_j [O, I], K [O - o + 1, I - i + 1], w_j [o, i]

⋆ is correlation with stride 1 and without padding. All layers and all ratios are one batch.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from fedwright.server_runtime.blocks.images import Sizes
from fedwright.server_runtime.blocks.kernels import Filter, Filters, Layout, Rest, Slot, Weights, modified_relu, rebuilt


class Compression:
    """The submodels of one large model; `theta` [ratios, layout.size] are the parameters that are tuned.

    weights: the large model's, which stand still.
    """

    def __init__(self, layout: Layout, sizes: Sequence[Sizes], weights: Weights, *, device: str = "cpu") -> None:
        self._layout, self._sizes, self._rest = layout, list(sizes), Rest(weights, layout.full)
        self._filters = Filters(layout, sizes, device)
        self._spectra = [slot.spectra(device) for slot in layout.slots]
        # [kernels, each, …]; transformed once, because the large model does not change while kernels are tuned.
        self._large = [
            spectra.prepared(slot.images(weights, layout.axes, layout.full))
            for slot, spectra in zip(layout.slots, self._spectra, strict=True)
        ]

    def submodels(self, theta: Tensor) -> list[dict[str, Tensor]]:
        """The weights of every ratio; gradients reach theta."""
        made = [
            self._images(number, slot, found)
            for number, (slot, found) in enumerate(zip(self._layout.slots, self._filters.read(theta), strict=True))
        ]
        return [
            rebuilt(self._layout, [images[member] for images in made], self._rest, sizes)
            for member, sizes in enumerate(self._sizes)
        ]

    def _images(self, number: int, slot: Slot, found: Filter) -> list[Tensor]:
        """One slot's images [kernels, each, o, i] for every ratio."""
        spectra = self._spectra[number]
        kernels = spectra.forward(found.kernel).conj()
        shift = found.shift * found.kernel.sum((-2, -1))
        rows = zip(self._sizes, kernels.unbind(0), found.scale.unbind(0), shift.unbind(0), strict=True)
        images = []
        for sizes, kernel, scale, b in rows:
            # What wraps around lies outside of what is kept.
            y = spectra.filtered(self._large[number], kernel, slot.pieces[0].shape(sizes))
            images.append(modified_relu(scale[..., None, None] * y + b[:, None, None, None], self._layout.form.mlr))
        return images


def compress(layout: Layout, theta: Tensor, weights: Weights, sizes: Sizes) -> dict[str, Tensor]:
    """One submodel without gradients."""
    with torch.no_grad():
        return Compression(layout, [sizes], weights, device=str(theta.device)).submodels(theta[None])[0]


def kernel_bytes(layout: Layout, sizes: Sequence[Sizes]) -> int:
    """Bytes of the parameters of all submodels, without the room that smaller kernels leave unused."""
    fixed = layout.size - layout.parts["v"]
    taps = sum(slot.kernels * prod(slot.kernel(own)) for own in sizes for slot in layout.slots)
    return 4 * (len(sizes) * fixed + taps)
