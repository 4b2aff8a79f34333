"""Compression: small models whose weights are convolutions of a large model's weight images (FedConv).

    w_j = MLR((1 + a) ω_j (K ⋆ W_j) + b ΣK)        W_j [O, I], K [O - o + 1, I - i + 1], w_j [o, i]

⋆ is correlation, with stride 1 and without padding unless the form says otherwise. All layers and all ratios
are one batch.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from fedwright.server_runtime.blocks.fedconv.correlation import Images
from fedwright.server_runtime.blocks.fedconv.kernels import Filters, Layout, Rest, Weights, filtered, rebuilt
from fedwright.server_runtime.blocks.fedconv.weight_images import Sizes


class Compression:
    """The submodels of one large model; `theta` [ratios, layout.size] are the parameters that are tuned.

    weights: the large model's, which stand still.
    """

    def __init__(self, layout: Layout, sizes: Sequence[Sizes], weights: Weights, *, device: str = "cpu") -> None:
        self._layout, self._sizes, self._rest = layout, list(sizes), Rest(weights, layout.full)
        self._filters = Filters(layout, sizes, device)
        self._filterings = []
        for slot in layout.slots:
            shapes = [slot.steps.dense(slot.pieces[0].shape(own)) for own in sizes]
            images = slot.steps.padded(slot.images(weights, layout.axes, layout.full))
            plain = Images.shrinking(images, shapes, slot.box, slot.pieces[0].cut).filtering()
            self._filterings.append(slot.steps.thinned(plain))

    def submodels(self, theta: Tensor) -> list[dict[str, Tensor]]:
        """The weights of every ratio; gradients reach theta."""
        made = filtered(self._layout, self._filterings, self._filters.read(theta))
        return [
            rebuilt(self._layout, [images[member] for images in made], self._rest, sizes)
            for member, sizes in enumerate(self._sizes)
        ]


def compress(layout: Layout, theta: Tensor, weights: Weights, sizes: Sizes) -> dict[str, Tensor]:
    """One submodel without gradients."""
    with torch.no_grad():
        return Compression(layout, [sizes], weights, device=str(theta.device)).submodels(theta[None])[0]


def kernel_bytes(layout: Layout, sizes: Sequence[Sizes]) -> int:
    """Bytes of the parameters of all submodels, without the room that smaller kernels leave unused."""
    fixed = layout.size - layout.parts["v"]
    taps = sum(slot.kernels * prod(_length(s) for s in slot.window(own)) for own in sizes for slot in layout.slots)
    return 4 * (len(sizes) * fixed + taps)


def _length(window: slice) -> int:
    first, last = int(window.start), int(window.stop)
    return last - first
