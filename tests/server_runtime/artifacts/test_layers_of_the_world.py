"""Layers that public architectures use, as torch modules: gradients against torch in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.graphs import graph_gradients, relative_error, torch_gradients

CLASSES, WIDTH = 3, 4
Map = Callable[[torch.Tensor], torch.Tensor]


class Around(nn.Module):
    """A layer between a convolution, so that a gradient flows through it, and a classifier that tells places apart."""

    def __init__(self, layer: Map, places: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, WIDTH, 1)
        self.layer = layer
        self.last = nn.Linear(places, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.layer(self.stem(x)).flatten(1))
        return answer


def _resized(**settings: object) -> Map:
    return lambda x: functional.interpolate(x, **settings)  # type: ignore[arg-type]


def _padded(mode: str) -> Map:
    return lambda x: functional.pad(x, (2, 1, 1, 3), mode=mode)


class Repeated(nn.Module):
    """A learnt map of places, tiled to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.linspace(-1, 1, WIDTH * 20).reshape(1, WIDTH, 5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.places.repeat(x.size(0), 1, 1, 1)


IMAGES: dict[str, Map] = {
    "adaptive average to sizes that do not divide": nn.AdaptiveAvgPool2d((2, 3)),
    "adaptive average to more than there is": nn.AdaptiveAvgPool2d((7, 6)),
    "adaptive average along one axis": nn.AdaptiveAvgPool2d((1, 4)),
    "adaptive max to sizes that do not divide": nn.AdaptiveMaxPool2d((2, 3)),
    "nearest, twice the size": _resized(scale_factor=2),
    "nearest, other size": _resized(size=(7, 3)),
    "bilinear": _resized(size=(7, 9), mode="bilinear"),
    "bilinear, smaller": _resized(size=(2, 3), mode="bilinear"),
    "bilinear, corners aligned": _resized(size=(7, 9), mode="bilinear", align_corners=True),
    "bicubic": _resized(scale_factor=1.6, mode="bicubic"),
    "reflected border": _padded("reflect"),
    "border of the edge": _padded("replicate"),
    "border from the other side": _padded("circular"),
    "each value three times": lambda x: x.repeat_interleave(3, dim=-1).view(x.size(0), WIDTH, -1, 6),
    "differences": lambda x: torch.diff(x, n=2, dim=-1),
    "pixel shuffle": nn.PixelShuffle(2),
    "pixel unshuffle": lambda x: functional.pixel_unshuffle(x[:, :, :4, :4], 2),
    "rolled windows": lambda x: torch.roll(x[:, :, :4, :4], (1, -2), (2, 3)).unfold(2, 2, 2).unfold(3, 2, 2),
    "group norm": nn.GroupNorm(2, WIDTH),
    "RMS norm": nn.RMSNorm([4]),
    "one map repeated for every sample": Repeated(),
    "cumulative sums": lambda x: x.cumsum(-1),
    "largest three": lambda x: x.topk(3, dim=-1).values,
    "sorted": lambda x: x.sort(dim=-1).values,
}


@pytest.mark.parametrize("name", IMAGES)
def test_image_layers(name: str) -> None:
    torch.manual_seed(5)
    rng = np.random.default_rng(6)
    batch = {"x": rng.standard_normal((3, 2, 5, 4)).astype(np.float32), "y": rng.integers(0, CLASSES, 3)}
    layer = IMAGES[name]
    module = Around(layer, layer(torch.zeros(1, WIDTH, 5, 4)).numel())

    loss, found = graph_gradients(module, batch, CLASSES)

    wanted_loss, wanted = torch_gradients(module, batch)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert relative_error(found, wanted) < 1e-5


class Places(nn.Module):
    """Logits at every place by a layer of any name; rotary positions made with repeat_interleave and a view of -1."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(9, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.size(1), dtype=self.read.weight.dtype)
        angles = (places[:, None] * 0.3 ** torch.arange(2)[None, :]).repeat_interleave(2, dim=-1)
        h = self.read(self.embed(x)).view(*x.shape, -1, 4)
        h = h * angles.cos()[None, :, None, :]
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        scores = torch.einsum("bihd,bjhd->bhij", h, h).masked_fill(~mask, float("-inf"))
        answer: torch.Tensor = self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), h).flatten(2))
        return answer


def test_a_decoder_without_a_part_called_head() -> None:
    torch.manual_seed(7)
    rng = np.random.default_rng(8)
    batch = {"x": rng.integers(0, 9, (3, 5)), "y": rng.integers(0, CLASSES, (3, 5))}
    module = Places()

    loss, found = graph_gradients(module, batch, CLASSES)

    wanted_loss, wanted = torch_gradients(module, batch)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert relative_error(found, wanted) < 1e-5


def test_a_failed_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    from fedwright.protocol.errors import BuildError

    batch = {"x": np.zeros((3, 2, 5, 4), np.float32), "y": np.zeros(3, np.int64)}
    module = Around(lambda x: torch.fft.fft(x).real, WIDTH * 20)

    with pytest.raises(BuildError):
        graph_gradients(module, batch, CLASSES)

    assert capfd.readouterr().out == ""
