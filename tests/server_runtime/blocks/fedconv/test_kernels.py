"""Compression and dilation against torch's own convolutions, layer kind by layer kind, and for every model there is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.fedconv.compression import Compression, compress, kernel_bytes
from fedwright.server_runtime.blocks.fedconv.dilation import Dilation
from fedwright.server_runtime.blocks.fedconv.fourier import Spectra
from fedwright.server_runtime.blocks.fedconv.kernels import KernelForm, Layout, make_layout, start_vector
from fedwright.server_runtime.blocks.slicing import Axis, Joined
from fedwright.server_runtime.spec import ModelSpec
from helpers.present import present

FULL, HALF, QUARTER = {"o": 8, "i": 6, "s": 200}, {"o": 4, "i": 3, "s": 100}, {"o": 2, "i": 1, "s": 50}
OUT, IN, LONG = Axis("o"), Axis("i"), Axis("s")
# name: axes, full shape, images [J, height, width] of a tensor
KINDS: dict[str, tuple[tuple[Axis | None, ...], tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "convolution": ((OUT, IN, None, None), (8, 6, 3, 3), lambda t: t.permute(2, 3, 0, 1).reshape(9, *t.shape[:2])),
    "first convolution": ((OUT, None, None, None), (8, 3, 5, 5), lambda t: t.permute(2, 3, 0, 1).reshape(25, -1, 3)),
    "depthwise": ((OUT, None, None, None), (8, 1, 3, 3), lambda t: t.permute(2, 3, 0, 1).reshape(9, -1, 1)),
    "linear": ((OUT, IN), (8, 6), lambda t: t[None]),
    "classes": ((None, IN), (10, 6), lambda t: t[None]),
    "flattened maps": ((OUT, Axis("i", inner=4)), (8, 24), lambda t: t.reshape(len(t), -1, 4).permute(2, 0, 1)),
    "gates": ((Axis("o", outer=4), IN), (32, 6), lambda t: t.reshape(4, -1, t.shape[1])),
    "bias": ((OUT,), (8,), lambda t: t[None, None]),
    "embedding": ((None, IN), (50, 6), lambda t: t[None]),
    "wide": ((LONG, IN), (200, 6), lambda t: t[None]),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def tensor(*shape: int) -> torch.Tensor:
    """Numbers that any mistake in an index moves."""
    return torch.from_numpy(np.random.default_rng(3).normal(size=shape).astype(np.float32))


def made(
    kind: str, form: KernelForm, sizes: tuple[dict[str, int], ...] = (HALF,)
) -> tuple[Layout, torch.Tensor, Callable[..., Any]]:
    """A layout of one tensor and random parameters of kernels for it."""
    axes, shape, images = KINDS[kind]
    layout = make_layout({"w": axes}, {"w": shape}, full=FULL, smallest=QUARTER, form=form)
    start = [start_vector(layout, own, generator=torch.Generator().manual_seed(5)) for own in sizes]
    return layout, torch.stack(start) + 0.1 * tensor(len(sizes), layout.size), images


def numbers_of(
    layout: Layout, theta: torch.Tensor, sizes: dict[str, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """ω, a, b and K of one tensor with a shared kernel, straight from the formulas."""
    omega, c1, d1, c2, d2, g, v = theta.split(list(layout.parts.values()))
    height, width = layout.slots[0].kernel(sizes)
    v = v.reshape(layout.slots[0].box)[:height, :width]
    assert len(c1) == 16
    return omega, c1 @ c2, c2 @ d1 + d2, g * v / v.norm()


@every_kind
def test_compression_is_a_convolution(kind: str) -> None:
    layout, theta, images = made(kind, KernelForm())
    weights = tensor(*KINDS[kind][1])
    omega, a, b, kernel = numbers_of(layout, theta[0], HALF)
    u = omega[:, None, None] * images(weights)
    expected = functional.conv2d((u + a * u + b)[:, None], kernel[None, None])[:, 0]
    found = compress(layout, theta[0], {"w": weights}, HALF)["w"]
    torch.testing.assert_close(images(found), expected, atol=2e-5, rtol=1e-4)


@every_kind
def test_dilation_is_a_transposed_convolution(kind: str) -> None:
    layout, theta, images = made(kind, KernelForm())
    small = compress(layout, theta[0], {"w": tensor(*KINDS[kind][1])}, HALF)["w"]
    omega, a, b, kernel = numbers_of(layout, theta[0], HALF)
    u = omega[:, None, None] * images(small)
    expected = functional.conv_transpose2d((u + a * u + b)[:, None], kernel[None, None])[:, 0]
    found = Dilation(layout, [HALF], [{"w": small}]).models(theta)[0]["w"]
    torch.testing.assert_close(images(found), expected, atol=5e-4, rtol=1e-4)


@every_kind
def test_layers_start_as_their_centres(kind: str) -> None:
    axes, shape, images = KINDS[kind]
    layout = make_layout({"w": axes}, {"w": shape}, full=FULL, smallest=QUARTER, form=KernelForm(noise=0.0, pair=False))
    theta = start_vector(layout, HALF, generator=torch.Generator().manual_seed(5))
    weights = {"w": tensor(*shape)}
    whole, part = images(weights["w"]), images(compress(layout, theta, weights, HALF)["w"])
    top, left = ((w - p) // 2 for w, p in zip(whole.shape[1:], part.shape[1:], strict=True))
    height, width = part.shape[1:]
    torch.testing.assert_close(part, whole[:, top : top + height, left : left + width], atol=1e-5, rtol=1e-5)


def test_a_model_that_nothing_cuts_stays_itself() -> None:
    layout = make_layout({"w": (OUT, IN)}, {"w": (8, 6)}, full=FULL, smallest=FULL, form=KernelForm())
    theta = start_vector(layout, FULL, generator=torch.Generator())
    weights = {"w": tensor(8, 6)}
    assert torch.equal(compress(layout, theta, weights, FULL)["w"], weights["w"])


def test_ratios_in_one_batch_are_those_one_by_one() -> None:
    layout, theta, _ = made("convolution", KernelForm(mlr=(0.85, 0.001)), (HALF, QUARTER, FULL))
    weights = {"w": tensor(8, 6, 3, 3)}
    together = Compression(layout, [HALF, QUARTER, FULL], weights).submodels(theta)
    for own, row, sizes in zip(together, theta, (HALF, QUARTER, FULL), strict=True):
        torch.testing.assert_close(own["w"], compress(layout, row, weights, sizes)["w"])


def test_devices_of_unlike_sizes_are_dilated_in_one_batch() -> None:
    layout, theta, _ = made("flattened maps", KernelForm(), (HALF, QUARTER))
    small = [{"w": tensor(4, 12)}, {"w": tensor(2, 4)}]
    together = Dilation(layout, [HALF, QUARTER], small).models(theta)
    for own, row, weights, sizes in zip(together, theta, small, (HALF, QUARTER), strict=True):
        torch.testing.assert_close(own["w"], Dilation(layout, [sizes], [weights]).models(row[None])[0]["w"])


def test_a_base_keeps_what_compression_left_out() -> None:
    layout, theta, _ = made("convolution", KernelForm(pair=False))
    base = {"w": tensor(8, 6, 3, 3)}
    nothing = {"w": torch.zeros(4, 3, 3, 3)}
    torch.testing.assert_close(Dilation(layout, [HALF], [nothing], base=base).models(theta)[0]["w"], base["w"])


def test_only_a_kernels_own_taps_get_a_gradient() -> None:
    layout, theta, _ = made("linear", KernelForm(), (HALF, QUARTER))
    theta.requires_grad_()
    models = Compression(layout, [HALF, QUARTER], {"w": tensor(8, 6)}).submodels(theta)
    torch.stack([(model["w"] ** 2).sum() for model in models]).sum().backward()
    taps = present(theta.grad)[:, -layout.parts["v"] :].reshape(2, 7, 6)
    assert taps[0, :5, :4].abs().min() > 0
    assert taps[0, 5:].abs().max() == 0
    assert taps[0, :, 4:].abs().max() == 0
    assert taps[1].abs().min() > 0


def test_separate_kernels_belong_to_their_images() -> None:
    layout, theta, images = made("flattened maps", KernelForm(shared=False, pair=False))
    assert layout.parts["g"] == 4
    weights = tensor(8, 24)
    omega, *_, g, v = theta[0].split(list(layout.parts.values()))
    v = v.reshape(4, 7, 6)[:, :5, :4]
    kernel = v * (g / v.flatten(1).norm(dim=1))[:, None, None]
    u = (omega[:, None, None] * images(weights))[None]
    expected = functional.conv2d(u, kernel[:, None], groups=4)[0]
    torch.testing.assert_close(
        images(compress(layout, theta[0], {"w": weights}, HALF)["w"]), expected, atol=2e-5, rtol=1e-4
    )


def test_concatenated_channels_are_filtered_part_by_part() -> None:
    axes = (Axis("o"), Joined(((Axis("i"), 6), (None, 2), (Axis("o"), 8))))
    layout = make_layout(
        {"w": axes}, {"w": (8, 16)}, full=FULL, smallest=QUARTER, form=KernelForm(noise=0.0, pair=False)
    )
    theta = start_vector(layout, HALF, generator=torch.Generator().manual_seed(5))
    weights = tensor(8, 16)
    found = compress(layout, theta, {"w": weights}, HALF)["w"]
    # centres: rows 2 to 5; columns 1 to 3 of the six, both fixed ones, 2 to 5 of the eight
    expected = weights[2:6][:, [1, 2, 3, 6, 7, 10, 11, 12, 13]]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_modified_relu_has_two_slopes() -> None:
    layout, theta, _ = made("linear", KernelForm())
    weights = {"w": tensor(8, 6)}
    plain = compress(layout, theta[0], weights, HALF)["w"]
    bent = make_layout({"w": (OUT, IN)}, {"w": (8, 6)}, full=FULL, smallest=QUARTER, form=KernelForm(mlr=(0.85, 0.001)))
    found = compress(bent, theta[0], weights, HALF)["w"]
    torch.testing.assert_close(found, torch.where(plain > 0, 0.85 * plain, 0.001 * plain))
    assert (plain < 0).any()


@pytest.mark.parametrize("name", sorted(zoo.MODELS))
def test_every_model_is_compressed_and_dilated(name: str) -> None:
    entry = zoo.MODELS[name]
    spec = ModelSpec(name, entry.example_shape, entry.example_classes)
    weights = {key: value.detach() for key, value in zoo.create(spec, seed=1).named_parameters()}
    small = zoo.scaled(spec, 0.5)
    sizes, shapes = zoo.sizes_of(small), {key: tuple(value.shape) for key, value in weights.items()}
    layout = make_layout(zoo.axes_of(spec), shapes, full=zoo.full_sizes(spec), smallest=sizes, form=KernelForm())
    theta = start_vector(layout, sizes, generator=torch.Generator().manual_seed(1))
    part = compress(layout, theta, weights, sizes)
    wanted = {key: tuple(value.shape) for key, value in zoo.create(small, seed=1).named_parameters()}
    assert {key: tuple(value.shape) for key, value in part.items()} == wanted
    whole = Dilation(layout, [sizes], [part]).models(theta[None])[0]
    assert {key: tuple(value.shape) for key, value in whole.items()} == shapes


def test_shared_kernels_take_a_fraction_of_separate_ones() -> None:
    spec = ModelSpec("lenet", (1, 28, 28), 10)
    shapes = {key: tuple(value.shape) for key, value in zoo.create(spec, seed=1).named_parameters()}
    sizes = [zoo.sizes_of(zoo.scaled(spec, ratio)) for ratio in (0.25, 0.5, 0.75)]

    def taken(form: KernelForm) -> int:
        full = zoo.full_sizes(spec)
        return kernel_bytes(make_layout(zoo.axes_of(spec), shapes, full=full, smallest=sizes[0], form=form), sizes)

    assert taken(KernelForm()) <= 0.2 * taken(KernelForm(shared=False))


@pytest.mark.parametrize("length", [7, 8, 170, 171])
def test_cropped_transforms_are_transforms(length: int) -> None:
    spectra = Spectra((length, 5), (-2, -1))
    values = tensor(2, length, 5)
    torch.testing.assert_close(
        spectra.inverse(spectra.forward(values), (3, 2)), values[:, :3, :2], atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        spectra.forward(values), torch.fft.fft(torch.fft.rfft(values, dim=-2), dim=-1), atol=1e-3, rtol=1e-3
    )


STEPS = [
    KernelForm(padding=2),
    KernelForm(stride=2),
    KernelForm(stride=2, padding=1, channels=3),
    KernelForm(taps=3, padding=1, delta=False),
    KernelForm(taps=2, shared=False),
]


@pytest.mark.parametrize("form", STEPS, ids=["padding", "stride", "both", "few taps", "few taps each"])
def test_strides_padding_and_taps_are_those_of_torch(form: KernelForm) -> None:
    full, small = {"o": 13, "i": 11}, {"o": 5, "i": 4}
    layout = make_layout({"w": (OUT, IN, None)}, {"w": (13, 11, 2)}, full=full, smallest=small, form=form)
    generator = torch.Generator().manual_seed(3)
    theta = start_vector(layout, small, generator=generator)
    theta = theta + 0.05 * torch.randn(theta.shape, generator=generator)
    parts = dict(zip(layout.parts, torch.split(theta, list(layout.parts.values())), strict=True))
    (slot,) = layout.slots
    (height, width), (rows, columns) = slot.kernel(small), slot.window(small)
    v = torch.zeros(slot.kernels, height, width)
    v[:, rows, columns] = parts["v"].reshape(slot.kernels, *slot.box)[:, rows, columns]
    kernel = (parts["g"] / v.flatten(1).norm(dim=1))[:, None, None] * v
    kernel = kernel.expand(2, height, width)[:, None]
    c1, d1, c2 = (parts[name].reshape(slot.kernels, -1) for name in ("c1", "d1", "c2"))
    gain = parts["omega"].reshape(2, 1, 1, 1) * (1 + (c1 * c2).sum(1)).expand(2).reshape(2, 1, 1, 1)
    bias = ((c2 * d1).sum(1) + parts["d2"]).expand(2).reshape(2, 1, 1, 1)

    w, given = torch.randn(13, 11, 2, generator=generator), torch.randn(5, 4, 2, generator=generator)
    # The padding lies before the 1×1 pair, which makes its bias of it.
    padded = functional.pad(gain * w.permute(2, 0, 1)[:, None], (form.padding,) * 4) + bias
    small_ones = gain * given.permute(2, 0, 1)[:, None] + bias
    made = compress(layout, theta, {"w": w}, small)["w"]
    grown = Dilation(layout, [small], [{"w": given}]).models(theta[None])[0]["w"]
    for j in (0, 1):
        less = functional.conv2d(padded[j : j + 1], kernel[j : j + 1], stride=form.stride)
        more = functional.conv_transpose2d(
            small_ones[j : j + 1], kernel[j : j + 1], stride=form.stride, padding=form.padding
        )
        torch.testing.assert_close(made[:, :, j], less[0, 0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(grown[:, :, j], more[0, 0], atol=1e-5, rtol=1e-4)


def test_a_stride_that_leaves_no_kernel_is_refused() -> None:
    full, small = {"o": 32, "i": 16}, {"o": 24, "i": 12}
    with pytest.raises(ConfigError, match=r"stride 2 and padding 0 cannot make \(24, 12\) of \(32, 16\) channels"):
        make_layout({"w": (OUT, IN)}, {"w": (32, 16)}, full=full, smallest=small, form=KernelForm(stride=2))
