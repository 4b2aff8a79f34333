"""The three ways of filtering images against torch's own convolutions, with the gradients of all that is learned."""

import pytest
import torch
from torch.nn import functional

from fedwright.server_runtime.blocks.fedconv import correlation
from fedwright.server_runtime.blocks.fedconv.correlation import Images

WAYS = {"unfolded": correlation.unfolded, "banded": correlation.banded, "transformed": correlation.transformed}
# kernels, images of each, the larger images, the smaller ones of every member
CASES = {
    "even sides": (1, 3, (8, 6), [(4, 3), (2, 1), (8, 6)]),
    "odd sides": (1, 2, (9, 7), [(5, 2), (4, 7)]),
    "several kernels": (3, 2, (6, 5), [(3, 3), (2, 4)]),
    "one row": (2, 1, (1, 8), [(1, 3), (1, 5)]),
    "one member": (1, 4, (7, 4), [(3, 2)]),
    "long": (1, 1, (170, 4), [(90, 3), (170, 1)]),
}
every_way = pytest.mark.parametrize("way", WAYS)
every_case = pytest.mark.parametrize("case", CASES)


def numbers(kernels: int, each: int, box: tuple[int, int], members: int) -> list[torch.Tensor]:
    """K, s and b of all members."""
    generator = torch.Generator().manual_seed(4)
    shapes = ((members, kernels, *box), (members, kernels, each), (members, kernels))
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def prepared(case: str) -> tuple[list[tuple[int, int]], tuple[int, int], list[torch.Tensor]]:
    """The case with room for its largest kernel, and kernels that are zero where a member has no taps."""
    kernels, each, whole, small = CASES[case]
    sizes = [(whole[0] - low + 1, whole[1] - narrow + 1) for low, narrow in small]
    box = (max(height for height, _ in sizes), max(width for _, width in sizes))
    taps, scale, shift = numbers(kernels, each, box, len(small))
    for own, (height, width) in zip(taps, sizes, strict=True):
        own[:, height:] = 0
        own[:, :, width:] = 0
    return sizes, box, [value.requires_grad_() for value in (taps, scale, shift)]


def same_with_gradients(found: list[torch.Tensor], expected: list[torch.Tensor], learned: list[torch.Tensor]) -> None:
    """Equal values, and equal gradients of a sum in which every entry has its own weight."""
    total = []
    for images in (found, expected):
        weighted = [(own * torch.linspace(-1, 1, own.numel()).reshape(own.shape)).sum() for own in images]
        total.append(torch.autograd.grad(torch.stack(weighted).sum(), learned))
    for one, other in zip((*found, *total[0]), (*expected, *total[1]), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def own_taps(taps: torch.Tensor, sizes: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Each member's kernels [k, 1, h, w]; only these count, and only these need a gradient."""
    return [own[:, None, :height, :width] for own, (height, width) in zip(taps, sizes, strict=True)]


def masked(taps: torch.Tensor, sizes: list[tuple[int, int]]) -> torch.Tensor:
    """All kernels in their room; no gradient reaches what is outside."""
    mask = torch.zeros_like(taps)
    for own, (height, width) in zip(mask, sizes, strict=True):
        own[:, :height, :width] = 1
    return taps * mask


@every_way
@every_case
def test_shrinking_images_are_correlations(way: str, case: str) -> None:
    kernels, each, whole, small = CASES[case]
    sizes, box, (taps, scale, shift) = prepared(case)
    images = torch.randn(kernels, each, *whole, generator=torch.Generator().manual_seed(1))
    made = WAYS[way](Images.shrinking(images, small, box, (-2, -1)))(masked(taps, sizes), scale, shift)
    expected = []
    for own, s, b in zip(own_taps(taps, sizes), scale, shift, strict=True):
        scaled = s[..., None, None] * images + b[:, None, None, None]
        expected.append(functional.conv2d(scaled.transpose(0, 1), own, groups=kernels).transpose(0, 1))
    same_with_gradients(made, expected, [taps, scale, shift])


@every_way
@every_case
def test_growing_images_are_transposed_correlations(way: str, case: str) -> None:
    kernels, each, whole, small = CASES[case]
    sizes, box, (taps, scale, shift) = prepared(case)
    generator = torch.Generator().manual_seed(1)
    images = [torch.randn(kernels, each, *shape, generator=generator) for shape in small]
    made = WAYS[way](Images.growing(images, whole, box, (-2, -1)))(masked(taps, sizes), scale, shift)
    expected = []
    for own, image, s, b in zip(own_taps(taps, sizes), images, scale, shift, strict=True):
        scaled = s[..., None, None] * image + b[:, None, None, None]
        expected.append(functional.conv_transpose2d(scaled.transpose(0, 1), own, groups=kernels).transpose(0, 1))
    same_with_gradients(made, expected, [taps, scale, shift])


@pytest.mark.parametrize("way", ["unfolded", "transformed"])
@pytest.mark.parametrize(("cut", "small"), [((-1,), (3, 5)), ((-2,), (2, 8))], ids=["columns", "rows"])
def test_a_side_may_stay_whole(way: str, cut: tuple[int], small: tuple[int, int]) -> None:
    box = (3 - small[0] + 1, 8 - small[1] + 1)
    learned = [value.requires_grad_() for value in numbers(1, 4, box, 1)]
    images = torch.randn(1, 4, 3, 8, generator=torch.Generator().manual_seed(1))
    made = WAYS[way](Images.shrinking(images, [small], box, cut))(*learned)
    taps, scale, shift = learned
    scaled = scale[0, ..., None, None] * images + shift[0, 0]
    expected = functional.conv2d(scaled.transpose(0, 1), taps[0][:, None]).transpose(0, 1)
    same_with_gradients(made, [expected], learned)


def test_the_way_follows_the_size_of_the_images() -> None:
    def chosen(count: int, whole: tuple[int, int], small: tuple[int, int], cut: tuple[int, ...] = (-2, -1)) -> str:
        box = (whole[0] - small[0] + 1, whole[1] - small[1] + 1)
        images = Images.shrinking(torch.zeros(1, count, *whole), [small], box, cut)
        return images.filtering().__qualname__.split(".")[0]

    assert chosen(1, (1, 16), (1, 8), (-1,)) == "unfolded"
    assert chosen(49, (128, 32), (64, 16)) == "_banded_shrinking"
    assert chosen(9, (256, 128), (128, 64)) == "transformed"
    assert chosen(1000, (1, 128), (1, 64), (-1,)) == "transformed"
