"""Learned kernels over weight images, for many submodels at once: what compression and dilation share.

For one image W_j of a layer and one submodel (a ratio, or a device):

    u = ω_j W_j        z = u + C2(C1(u))        K = g v / ||v||        y = MLR(K ∘ z)

C1 and C2 are 1×1 convolutions 1 → channels → 1. Without a nonlinearity between them they are the map u ↦ a u + b with
a = c2·c1 and b = c2·d1 + d2, so that K ∘ z = (1 + a) ω_j (K ∘ W_j) + b (K ∘ 1): the images, which stand still, meet
only K. ∘ is a correlation or its transpose; kernels are nearly as large as the images, see correlation.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import torch
from torch import Tensor

from fedwright.server_runtime.blocks.fedconv.correlation import Filtering
from fedwright.server_runtime.blocks.fedconv.kernel_steps import Steps
from fedwright.server_runtime.blocks.fedconv.weight_images import (
    ImagePiece,
    Sizes,
    assemble_weights,
    extract,
    pieces_of,
)
from fedwright.server_runtime.blocks.slicing import Axes

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class KernelForm:
    """How kernels are made.

    shared: one kernel per layer, else one per image. mlr: slopes of the modified leaky ReLU (the paper's .85, .001),
    None leaves it out. pair: the 1×1 convolutions, with so many channels between. normalise: weight normalisation.
    delta: start as a crop. noise: of the other taps at the start. damp: scale of C2 at the start. stride, padding: of K
    along the sides that it changes. taps: K has at most so many along a side, in the middle of what is left of it.
    """

    shared: bool = True
    mlr: tuple[float, float] | None = None
    pair: bool = True
    normalise: bool = True
    delta: bool = True
    noise: float = 1e-3
    damp: float = 0.1
    channels: int = 16
    stride: int = 1
    padding: int = 0
    taps: int | None = None


@dataclass(frozen=True)
class KernelSlot:
    """Pieces with images of the same size and number, which are filtered together.

    count: J of each piece. kernels: of all pieces together. box: room for the largest kernel.
    """

    pieces: tuple[ImagePiece, ...]
    count: int
    kernels: int
    box: tuple[int, int]
    image: tuple[int, int]
    form: KernelForm = field(default_factory=KernelForm)

    @property
    def steps(self) -> Steps:
        """How its kernels go over its images."""
        return Steps(self.form.stride, self.form.padding, self.pieces[0].cut)

    @property
    def each(self) -> int:
        """How many images one kernel serves."""
        return len(self.pieces) * self.count // self.kernels

    def kernel(self, sizes: Sizes) -> tuple[int, int]:
        """(O - o + 1, I - i + 1), with padding p and stride s (O + 2 p - s (o - 1), I + 2 p - s (i - 1))."""
        return self.steps.kernel(self.image, self.pieces[0].shape(sizes))

    def window(self, sizes: Sizes) -> tuple[slice, slice]:
        """Which taps of the kernel there are: all, or those in its middle."""
        height, width = (_middle(length, self.form.taps) for length in self.kernel(sizes))
        return height, width

    def images(self, weights: Weights, axes: Axes, sizes: Sizes) -> Tensor:
        """[kernels, each, height, width] of all pieces."""
        made = [
            piece.images(extract(axes[piece.name], weights[piece.name], piece.part, sizes), sizes)
            for piece in self.pieces
        ]
        return torch.cat(made).reshape(self.kernels, self.each, *made[0].shape[1:])


@dataclass(frozen=True)
class Layout:
    """All pieces of a model at its full sizes, with room for the kernels of the smallest submodel.

    A submodel's parameters are one vector: ω, c1, d1, c2, d2, g and v, each of all slots.
    """

    axes: Axes
    full: Sizes
    form: KernelForm
    slots: tuple[KernelSlot, ...]
    names: tuple[str, ...]

    @property
    def parts(self) -> dict[str, int]:
        """How many numbers of each kind there are."""
        kernels = sum(slot.kernels for slot in self.slots)
        pair = dict.fromkeys(("c1", "d1", "c2"), self.form.channels * kernels)
        omega = sum(slot.kernels * slot.each for slot in self.slots)
        taps = sum(slot.kernels * prod(slot.box) for slot in self.slots)
        return {"omega": omega, **pair, "d2": kernels, "g": kernels, "v": taps}

    @property
    def size(self) -> int:
        """Length of one submodel's vector of parameters."""
        return sum(self.parts.values())


def make_layout(
    axes: Axes, shapes: Mapping[str, Sequence[int]], *, full: Sizes, smallest: Sizes, form: KernelForm
) -> Layout:
    """The layout of a model's parameters; `shapes` are those of the full model."""
    alike: dict[tuple[object, ...], list[ImagePiece]] = {}
    for piece in pieces_of(axes, shapes):
        image, least = piece.shape(full), piece.shape(smallest)
        if image != least:
            groups = tuple(piece.group(dim) for dim in piece.cut)
            alike.setdefault((image, least, piece.count(full), piece.cut, groups), []).append(piece)
    slots = []
    for pieces in alike.values():
        image, least, count = pieces[0].shape(full), pieces[0].shape(smallest), pieces[0].count(full)
        kernels = len(pieces) * (1 if form.shared else count)
        box = Steps(form.stride, form.padding, pieces[0].cut).kernel(image, least)
        slots.append(KernelSlot(tuple(pieces), count, kernels, box, image, form))
    return Layout(axes, full, form, tuple(slots), tuple(shapes))


def start_vector(layout: Layout, sizes: Sizes, *, generator: torch.Generator) -> Tensor:
    """A submodel's first parameters: K is 1 at its centre and almost 0 elsewhere, so that layers start as crops."""
    form, parts = layout.form, layout.parts
    taps = [_start_taps(slot, sizes, generator) for slot in layout.slots]
    if not taps:
        return torch.zeros(0)

    def uniform(name: str, bound: float) -> Tensor:
        return bound * (2 * torch.rand(parts[name], generator=generator) - 1)

    inside = form.channels**-0.5
    biases = 0.0 if form.delta else 1.0
    values = (
        torch.ones(parts["omega"]),
        uniform("c1", 1.0),
        biases * uniform("d1", 1.0),
        (form.damp if form.delta else 1.0) * uniform("c2", inside),
        biases * uniform("d2", inside),
        torch.cat([v.square().sum((1, 2)).sqrt() for v in taps]),
        torch.cat([v.reshape(-1) for v in taps]),
    )
    return torch.cat(values)


def _start_taps(slot: KernelSlot, sizes: Sizes, generator: torch.Generator) -> Tensor:
    """v [kernels, *box], zero outside of the kernel."""
    form, (height, width), (rows, columns) = slot.form, slot.kernel(sizes), slot.window(sizes)
    v = torch.zeros(slot.kernels, *slot.box)
    count = (rows.stop - rows.start) * (columns.stop - columns.start)
    shape = (slot.kernels, rows.stop - rows.start, columns.stop - columns.start)
    inside = torch.rand(shape, generator=generator)
    if form.delta:
        v[:, rows, columns] = form.noise / count * (2 * inside - 1)
        v[:, (height - 1) // 2, (width - 1) // 2] = 1.0
    else:
        v[:, rows, columns] = count**-0.5 * (2 * inside - 1)
    return v


def _middle(length: int, taps: int | None) -> slice:
    if taps is None or taps >= length:
        return slice(0, length)
    # The tap at which a crop begins is among them.
    first = (length - 1) // 2 - (taps - 1) // 2
    return slice(first, first + taps)


@dataclass(frozen=True)
class Filter:
    """One slot's numbers for all M submodels, as the formulas use them.

    scale: (1 + a) ω f [M, kernels, each]. shift: b f [M, kernels]. taps: v [M, kernels, *box]. With f = g / ||v||, or
    1 if kernels are not normalised, they stand for K = f v: few numbers are cheaper to multiply than all taps.
    """

    scale: Tensor
    shift: Tensor
    taps: Tensor


class Filters:
    """Reads vectors of parameters of submodels with these sizes."""

    def __init__(self, layout: Layout, sizes: Sequence[Sizes], device: str) -> None:
        self._layout = layout
        # Which taps a kernel has: those of larger submodels are smaller than their room.
        masks = [torch.zeros(len(sizes), 0, device=device)]
        for slot in layout.slots:
            mask = torch.zeros(len(sizes), slot.kernels, *slot.box, device=device)
            for member, own in enumerate(sizes):
                rows, columns = slot.window(own)
                mask[member, :, rows, columns] = 1
            masks.append(mask.flatten(1))
        self._inside = torch.cat(masks, dim=1)

    def read(self, theta: Tensor) -> list[Filter]:
        """theta [M, layout.size] to the numbers of every slot."""
        slots, form = self._layout.slots, self._layout.form
        if not slots:
            return []
        omega, c1, d1, c2, d2, g, v = torch.split(theta, list(self._layout.parts.values()), dim=1)
        kernels = [slot.kernels for slot in slots]
        parts = torch.split(v * self._inside, [slot.kernels * prod(slot.box) for slot in slots], dim=1)
        taps = [part.reshape(-1, slot.kernels, *slot.box) for slot, part in zip(slots, parts, strict=True)]
        # The rest is done for all kernels at once, [M, all kernels].
        gain, shift = torch.ones_like(d2), torch.zeros_like(d2)
        if form.pair:
            c1, d1, c2 = (part.reshape(len(theta), -1, form.channels) for part in (c1, d1, c2))
            gain, shift = 1 + (c1 * c2).sum(-1), (c2 * d1).sum(-1) + d2
        if form.normalise:
            factor = g / torch.cat([torch.linalg.vector_norm(own, dim=(-2, -1)) for own in taps], dim=1)
            gain, shift = gain * factor, shift * factor
        weights = torch.split(omega, [slot.kernels * slot.each for slot in slots], dim=1)
        gains, shifts = (torch.split(values, kernels, dim=1) for values in (gain, shift))
        rows = zip(weights, gains, shifts, taps, strict=True)
        return [Filter(one.reshape(*s.shape, -1) * s[..., None], b, own) for one, s, b, own in rows]


def filtered(layout: Layout, filterings: Sequence[Filtering], filters: Sequence[Filter]) -> list[list[Tensor]]:
    """MLR((1 + a) ω (K ∘ W) + b (K ∘ 1)): for every slot, the images [kernels, each, …] of every submodel."""
    made = [filtering(own.taps, own.scale, own.shift) for filtering, own in zip(filterings, filters, strict=True)]
    return [[modified_relu(image, layout.form.mlr) for image in images] for images in made]


def modified_relu(values: Tensor, slopes: tuple[float, float] | None) -> Tensor:
    """s_p x for x > 0, s_n x elsewhere."""
    if slopes is None:
        return values
    return torch.where(values > 0, slopes[0] * values, slopes[1] * values)


@dataclass(frozen=True)
class Rest:
    """Where tensors and parts of tensors come from that have no kernels: a model at its own sizes."""

    weights: Weights
    sizes: Sizes


def rebuilt(layout: Layout, images: Sequence[Tensor], rest: Rest, sizes: Sizes) -> dict[str, Tensor]:
    """A model at these sizes from each slot's images and from what has no kernels."""
    made: dict[str, dict[tuple[int, ...], Tensor]] = {}
    for slot, values in zip(layout.slots, images, strict=True):
        parts = torch.chunk(values, len(slot.pieces)) if len(slot.pieces) > 1 else (values,)
        for piece, part in zip(slot.pieces, parts, strict=True):
            made.setdefault(piece.name, {})[piece.part] = piece.tensor(part, sizes)

    def one(name: str, part: tuple[int, ...]) -> Tensor:
        if part in made[name]:
            return made[name][part]
        return extract(layout.axes[name], rest.weights[name], part, rest.sizes)

    return {
        name: assemble_weights(layout.axes[name], partial(one, name)) if name in made else rest.weights[name]
        for name in layout.names
    }
