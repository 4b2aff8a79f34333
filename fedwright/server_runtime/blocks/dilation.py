"""Dilation: large models whose weights are transposed convolutions of small models' weight images (FedConv).

    W~_j = MLR(K ⊛ ((1 + a) Ω_j w_j + b))        w_j [o, i], K [O - o + 1, I - i + 1], W~_j [O, I]

⊛ is the transposed convolution with stride 1 and without padding. All devices of a round, whatever their ratios, are
one batch. On a base, W~ = W + K ⊛ (…): what a device learned is dilated instead of its model, and what compression
had left out of W stays.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwright.server_runtime.blocks.images import Sizes
from fedwright.server_runtime.blocks.kernels import Filter, Filters, Layout, Rest, Slot, Weights, modified_relu, rebuilt


class Dilation:
    """The dilated models of several devices; `theta` [devices, layout.size] are the parameters that are tuned.

    small: each device's weights, or their changes when a base is given. sizes: each device's channel groups.
    """

    def __init__(
        self,
        layout: Layout,
        sizes: Sequence[Sizes],
        small: Sequence[Weights],
        *,
        base: Weights | None = None,
        device: str = "cpu",
    ) -> None:
        self._layout, self._base = layout, base
        self._rest = [Rest(own, size) for own, size in zip(small, sizes, strict=True)]
        self._filters = Filters(layout, sizes, device)
        self._spectra = [slot.spectra(device) for slot in layout.slots]
        # [M, kernels, each, …] and [M, 1, 1, …]: smaller images are padded with zeros.
        self._small: list[Tensor] = []
        self._ones: list[Tensor] = []
        for slot, spectra in zip(layout.slots, self._spectra, strict=True):
            images = [slot.images(own, layout.axes, size) for own, size in zip(small, sizes, strict=True)]
            ones = [torch.ones(1, 1, *slot.pieces[0].shape(size), device=device) for size in sizes]
            self._small.append(torch.stack([spectra.prepared(image) for image in images]))
            self._ones.append(torch.stack([spectra.prepared(box) for box in ones]))

    def models(self, theta: Tensor) -> list[dict[str, Tensor]]:
        """The dilated weights of every device; gradients reach theta."""
        made = [
            self._images(number, slot, found).unbind(0)
            for number, (slot, found) in enumerate(zip(self._layout.slots, self._filters.read(theta), strict=True))
        ]
        models = [
            rebuilt(self._layout, [images[member] for images in made], rest, self._layout.full)
            for member, rest in enumerate(self._rest)
        ]
        if self._base is None:
            return models
        return [{name: self._base[name] + value for name, value in model.items()} for model in models]

    def _images(self, number: int, slot: Slot, found: Filter) -> Tensor:
        """One slot's images [M, kernels, each, O, I]."""
        spectra = self._spectra[number]
        kernels = spectra.forward(found.kernel)
        # Scales come last, as the transposed convolution is linear: K ⊛ (s w + b) = s (K ⊛ w) + b (K ⊛ 1).
        made = found.scale[..., None, None] * spectra.filtered(self._small[number], kernels, slot.image)
        made = made + found.shift[..., None, None, None] * spectra.filtered(self._ones[number], kernels, slot.image)
        return modified_relu(made, self._layout.form.mlr)
