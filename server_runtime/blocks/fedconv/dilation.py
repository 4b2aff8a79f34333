"""Dilation: large models whose weights are transposed convolutions of small models' weight images (FedConv).

    W~_j = MLR(K ⊛ ((1 + a) Ω_j w_j + b))        w_j [o, i], K [O - o + 1, I - i + 1], W~_j [O, I]

⊛ is the transposed convolution, with stride 1 and without padding unless the form says otherwise. All devices of a
round, whatever their ratios, are one batch. On a base, W~ = W + K ⊛ (…): what a device learned is dilated instead of
its model, and what compression had left out of W stays.
"""

from collections.abc import Sequence

from torch import Tensor

from fedwright.server_runtime.blocks.fedconv.correlation import Images
from fedwright.server_runtime.blocks.fedconv.kernels import Filters, Layout, Rest, Weights, filtered, rebuilt
from fedwright.server_runtime.blocks.fedconv.weight_images import Sizes


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
        self._filterings = []
        for slot in layout.slots:
            images = [slot.images(own, layout.axes, size) for own, size in zip(small, sizes, strict=True)]
            steps, cut = slot.steps, slot.pieces[0].cut
            plain = Images.growing(images, steps.larger(slot.image), slot.box, cut, spread=steps.spread).filtering()
            self._filterings.append(steps.trimmed(plain))

    def models(self, theta: Tensor) -> list[dict[str, Tensor]]:
        """The dilated weights of every device; gradients reach theta."""
        made = filtered(self._layout, self._filterings, self._filters.read(theta))
        models = [
            rebuilt(self._layout, [images[member] for images in made], rest, self._layout.full)
            for member, rest in enumerate(self._rest)
        ]
        if self._base is None:
            return models
        return [{name: self._base[name] + value for name, value in model.items()} for model in models]
