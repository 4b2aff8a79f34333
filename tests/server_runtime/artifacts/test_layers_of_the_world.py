"""Layers that public architectures use, as torch modules: gradients against torch in float64."""

from collections.abc import Callable
from typing import Any

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


def _places(x: torch.Tensor) -> torch.Tensor:
    return 1.3 * torch.tanh(x[:, :2]).permute(0, 2, 3, 1)


def _turned(x: torch.Tensor) -> torch.Tensor:
    return functional.affine_grid(x.mean((2, 3)).repeat(1, 2)[:, :6].reshape(-1, 2, 3), list(x.shape), False)


def _replaced(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:3] = 2 * y[:, 1:3]
    y[:, :, 0] = 0
    y[:, :, 2, 1:] = x[:, :, 1, 1:]
    return y


def _without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.exp()


class Squared(torch.autograd.Function):
    """x^2."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = 2 * ctx.saved_tensors[0] * grads[0]
        return product


class Frequencies(nn.Module):
    """Learnt factors of frequencies, as in GFNet."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(-1, 1, WIDTH * 30).reshape(WIDTH, 5, 3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.factors)
        made: torch.Tensor = torch.fft.irfft2(found, s=(5, 4), norm="ortho")
        return made


def _there_and_back(x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.fft(x, dim=2, norm="forward")
    odd = torch.fft.irfft(torch.fft.rfft(x, dim=2) * 0.5, n=5, dim=2)
    made: torch.Tensor = torch.fft.ifft(spectrum * spectrum, dim=2).real + odd
    return made


IMAGES: dict[str, Map] = {
    "real part of a Fourier transform over rows and columns": lambda x: torch.fft.fftn(x, dim=(2, 3)).real,
    "lengths of frequencies": lambda x: torch.abs(torch.fft.rfft(x, dim=2) + 0.5),
    "frequencies as pairs": lambda x: torch.view_as_real(torch.fft.fft2(x)).flatten(3),
    "frequencies there and back, of an odd length too": _there_and_back,
    "learnt factors of frequencies": Frequencies(),
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
    "windows of a maximum that overlap": nn.MaxPool2d(3, 2, 1),
    "padding as automatic": nn.Conv2d(WIDTH, 3, 3, padding="same"),
    "average over areas": _resized(size=(2, 3), mode="area"),
    "antialiased": _resized(size=(2, 3), mode="bilinear", antialias=True),
    "nearest by centres": _resized(size=(3, 7), mode="nearest-exact"),
    "unfolded and folded": lambda x: functional.fold(functional.unfold(x, 3, padding=1), (5, 4), 3, padding=1),
    "sampled where the image says": lambda x: functional.grid_sample(x, _places(x), align_corners=False),
    "sampled, border": lambda x: functional.grid_sample(x, _places(x), padding_mode="border", align_corners=True),
    "sampled, reflected": lambda x: functional.grid_sample(x, _places(x), "nearest", "reflection", False),
    "turned by a grid": lambda x: functional.grid_sample(x, _turned(x), align_corners=False),
    "diagonal": lambda x: x[..., :4, :].diagonal(dim1=2, dim2=3),
    "sums by repeated letters": lambda x: torch.einsum("bcii->bci", x[..., :4, :]),
    "sums with dots": lambda x: torch.einsum("...hw,...hv->...wv", x, x),
    "quarter turn": lambda x: torch.rot90(x, 1, (2, 3)),
    "products so far": lambda x: (1 + 0.1 * x).cumprod(-1),
    "largest so far": lambda x: x.cummax(-1).values,
    "log of sums so far": lambda x: x.logcumsumexp(-1),
    "product": lambda x: x.prod(-1),
    "median": lambda x: x.median(-1).values,
    "distances": lambda x: torch.cdist(x.flatten(2), x.flatten(2)[:, :2]),
    "inverse functions": lambda x: torch.atan(x) + torch.asin(0.2 * x.tanh()) + torch.acosh(2 + x * x),
    "remainder": lambda x: torch.remainder(x, 0.7) + torch.frac(x),
    "a part replaced": lambda x: _replaced(x),
    "what is cut off": lambda x: x * x.detach() + (x.round() - x).detach(),
    "computed without gradients": lambda x: _without_gradients(x) * x,
    "a function with a backward of its own": lambda x: Squared.apply(x),  # type: ignore[no-untyped-call]
    "channels in turn": nn.ChannelShuffle(2),
    "local response norm": nn.LocalResponseNorm(3),
    "batch norm that keeps nothing": nn.BatchNorm2d(WIDTH, track_running_stats=False),
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


class Steps(nn.Module):
    """A recurrent layer over the rows of an image, read at every step or at the last."""

    def __init__(self, layer: nn.Module, *, last: bool = False) -> None:
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, state = self.layer(x[:, 0])
        answer: torch.Tensor = state.transpose(0, 1) if self.last else steps
        return answer


RECURRENT: dict[str, nn.Module] = {
    "gru": Steps(nn.GRU(4, 3, batch_first=True)),
    "last state of gru": Steps(nn.GRU(4, 3, batch_first=True), last=True),
    "two layers of gru, both ways": Steps(nn.GRU(4, 3, 2, batch_first=True, bidirectional=True)),
    "gru without bias": Steps(nn.GRU(4, 3, batch_first=True, bias=False)),
    "rnn": Steps(nn.RNN(4, 3, batch_first=True), last=True),
    "two layers of rnn, relu, both ways": Steps(
        nn.RNN(4, 3, 2, batch_first=True, nonlinearity="relu", bidirectional=True)
    ),
    "two layers of lstm, both ways": Steps(nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    torch.manual_seed(3)
    rng = np.random.default_rng(4)
    batch = {"x": rng.standard_normal((3, 2, 5, 4)).astype(np.float32), "y": rng.integers(0, CLASSES, 3)}
    layer = RECURRENT[name]
    module = Around(layer, layer(torch.zeros(1, WIDTH, 5, 4)).numel())

    loss, found = graph_gradients(module, batch, CLASSES)

    wanted_loss, wanted = torch_gradients(module, batch)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert relative_error(found, wanted) < 1e-5


class LastWords(nn.Module):
    """The state at the last real token of each sample; the row of the padding learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = (x > 0).sum(1) - 1
        answer: torch.Tensor = self.out(self.embed(x).cumsum(1)[torch.arange(x.size(0)), last])
        return answer


def test_last_token_of_each_sample_and_the_row_of_the_padding() -> None:
    torch.manual_seed(7)
    rng = np.random.default_rng(8)
    tokens = rng.integers(1, 9, (3, 5))
    tokens[1, 3:] = 0
    batch = {"x": tokens, "y": rng.integers(0, CLASSES, 3)}
    module = LastWords()

    loss, found = graph_gradients(module, batch, CLASSES)

    wanted_loss, wanted = torch_gradients(module, batch)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert relative_error(found, wanted) < 1e-5
    assert not np.any(found["embed.weight"][0])


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
    module = Around(torch.special.bessel_j0, WIDTH * 20)

    with pytest.raises(BuildError):
        graph_gradients(module, batch, CLASSES)

    assert capfd.readouterr().out == ""
