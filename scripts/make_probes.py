"""Small training graphs that a device times to know itself; `write` makes the file that the package carries.

Run `python scripts/make_probes.py` after a change of the gradient rules, so that devices time
the operators that training graphs are made of now.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from fedwright.device_runtime.profiler.pack import PROBES, Probe, pack_probes
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

CLASSES = 10
MOMENTUM = Optimizer(momentum=0.9)


@dataclass(frozen=True)
class _Plan:
    name: str
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]
    batches: tuple[int, ...] = (4, 24)
    optimizer: Optimizer = MOMENTUM


def _conv_net(
    channels: list[int], kernel: int, *, norm: str = "", act: type[nn.Module] = nn.ReLU, stride: int = 1
) -> nn.Module:
    layers: list[nn.Module] = []
    for index, (source, target) in enumerate(pairwise(channels)):
        step = stride if index else 1
        layers.append(nn.Conv2d(source, target, kernel, step, kernel // 2, bias=not norm))
        if norm == "batch":
            layers.append(nn.BatchNorm2d(target))
        elif norm == "group":
            layers.append(nn.GroupNorm(4, target))
        layers.append(act())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], CLASSES))


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; behind a stem the gradient goes on through both."""

    def __init__(self, source: int, target: int, size: int, *, stem: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(source, source, 3, 1, 1) if stem else nn.Identity()
        self.first = nn.Sequential(nn.Conv2d(source, target, 3, 2, 1, bias=False), nn.BatchNorm2d(target), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(target, target, 3, 1, 1, bias=False), nn.BatchNorm2d(target))
        self.shortcut = nn.Conv2d(source, target, 1, 2, bias=False)
        self.head = nn.Linear(target * (size // 2) ** 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(x)
        return self.head(torch.relu(self.second(self.first(x)) + self.shortcut(x)).flatten(1))  # type: ignore[no-any-return]


def _separable(width: int, kernel: int, *, act: type[nn.Module] = nn.ReLU6, stride: int = 1) -> nn.Module:
    """Narrow to wide, one filter per channel, back to narrow."""
    narrow = max(8, width // 4)
    return nn.Sequential(
        nn.Conv2d(narrow, width, 1, bias=False),
        nn.BatchNorm2d(width),
        act(),
        nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width, bias=False),
        nn.BatchNorm2d(width),
        act(),
        nn.Conv2d(width, narrow, 1, bias=False),
        nn.BatchNorm2d(narrow),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(narrow, CLASSES),
    )


class _Squeeze(nn.Module):
    """Channels weighed by what is in them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = nn.functional.hardswish(x)
        gate = nn.functional.hardsigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))
        return self.head((x * gate).mean((2, 3)))  # type: ignore[no-any-return]


def _pooled(channels: int, kernel: int, pool: nn.Module, size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel, padding=kernel // 2),
        nn.ReLU(),
        pool,
        nn.Conv2d(16, 24, kernel, padding=kernel // 2),
        nn.ReLU(),
        pool,
        nn.Flatten(),
        nn.Linear(24 * (size // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def _unpadded(kernel: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(8, 20, kernel),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * ((26 - kernel + 1) // 2 - kernel + 1) ** 2, CLASSES),
    )


def _dense(sizes: list[int], act: type[nn.Module], *, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for source, target in pairwise(sizes):
        layers += [nn.Linear(source, target), *([nn.LayerNorm(target)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))


class _Attention(nn.Module):
    """One block of attention over patches of an image and a token of its own; apart: three matrices instead of one."""

    def __init__(self, width: int, heads: int, places: int, *, apart: bool = False) -> None:
        super().__init__()
        self.apart = apart
        self.heads = heads
        self.cut = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, places + 1, width))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        if apart:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        else:
            self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        normal = self.before(x)
        parts = [self.q(normal), self.k(normal), self.v(normal)] if self.apart else self.qkv(normal).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head((x + self.mlp(self.between(x)))[:, 0])  # type: ignore[no-any-return]


class _Recurrent(nn.Module):
    """A recurrent layer over a series; the last step decides."""

    def __init__(self, kind: type[nn.RNNBase], source: int, width: int) -> None:
        super().__init__()
        self.layer = kind(source, width, batch_first=True)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]


def _series(source: int, width: int, length: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(source, width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(width, width, 5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * (length // 2), CLASSES),
    )


def _plans() -> list[_Plan]:
    net, sep = _conv_net, _separable
    return [
        _Plan("conv 3x3 narrow", (3, 32, 32), lambda: net([3, 6, 12], 3)),
        _Plan("conv 3x3 very narrow", (2, 30, 30), lambda: net([2, 2, 5], 3, norm="batch"), (8, 40)),
        _Plan("conv 3x3 very narrow apart", (3, 28, 28), lambda: net([3, 2, 4], 3, norm="batch", stride=2), (8, 40)),
        _Plan("conv 3x3 batch norm", (3, 24, 24), lambda: net([3, 16, 24], 3, norm="batch")),
        _Plan("conv 3x3 group norm", (3, 20, 20), lambda: net([3, 16, 32], 3, norm="group", stride=2)),
        _Plan("conv 3x3 wide", (48, 8, 8), lambda: net([48, 96, 128], 3, norm="batch", stride=2), (4, 16)),
        _Plan("conv 3x3 deep", (96, 4, 4), lambda: net([96, 192, 192], 3, norm="batch"), (4, 16)),
        _Plan("conv 3x3 deeper", (256, 2, 2), lambda: net([256, 384], 3, norm="batch"), (4, 8)),
        _Plan("conv 3x3 plain", (16, 16, 16), lambda: net([16, 40, 40], 3), (4, 16)),
        _Plan("conv 3x3 middle", (24, 16, 16), lambda: net([24, 48, 64], 3, norm="batch", stride=2), (4, 20)),
        _Plan("conv 5x5", (8, 14, 14), lambda: net([8, 20, 32], 5), (4, 20)),
        _Plan("conv 5x5 narrow", (1, 24, 24), lambda: net([1, 3, 6], 5), (8, 40)),
        _Plan("conv 5x5 one by one", (1, 28, 28), lambda: net([1, 2, 3], 5), (8, 24)),
        _Plan("conv 5x5 to one", (3, 32, 32), lambda: net([3, 1, 2], 5), (8, 24)),
        _Plan("conv 5x5 wide", (32, 8, 8), lambda: net([32, 64], 5), (8, 32)),
        _Plan("residual narrow", (8, 32, 32), lambda: _Residual(8, 16, 32)),
        _Plan("residual wide", (64, 8, 8), lambda: _Residual(64, 128, 8)),
        _Plan("residual stem very narrow", (2, 28, 28), lambda: _Residual(2, 4, 28, stem=True), (8, 40)),
        _Plan("residual stem narrow", (3, 24, 24), lambda: _Residual(3, 6, 24, stem=True), (8, 40)),
        _Plan("residual stem odd", (4, 20, 20), lambda: _Residual(4, 9, 20, stem=True), (8, 40)),
        _Plan("residual stem", (20, 12, 12), lambda: _Residual(20, 40, 12, stem=True)),
        _Plan("depthwise very narrow", (8, 20, 20), lambda: sep(16, 3)),
        _Plan("depthwise narrow", (8, 24, 24), lambda: sep(24, 3)),
        _Plan("depthwise small", (8, 14, 14), lambda: sep(32, 3)),
        _Plan("depthwise large", (12, 32, 32), lambda: sep(48, 3, act=nn.Hardswish), (4, 16)),
        _Plan("depthwise", (24, 16, 16), lambda: sep(96, 3), (4, 16)),
        _Plan("depthwise stride", (16, 24, 24), lambda: sep(64, 3, stride=2), (4, 16)),
        _Plan("depthwise wide", (80, 4, 4), lambda: sep(320, 3), (4, 16)),
        _Plan("depthwise middle", (32, 8, 8), lambda: sep(128, 3), (4, 16)),
        _Plan("depthwise widest", (128, 2, 2), lambda: sep(512, 3)),
        _Plan("depthwise 5x5", (20, 10, 10), lambda: sep(80, 5, act=nn.Hardswish), (4, 16)),
        _Plan("squeeze", (48, 12, 12), lambda: _Squeeze(48)),
        _Plan("max pool", (3, 28, 28), lambda: _pooled(3, 5, nn.MaxPool2d(2), 28)),
        _Plan("max pool unpadded", (1, 26, 26), lambda: _unpadded(5)),
        _Plan("mean pool", (3, 20, 20), lambda: _pooled(3, 3, nn.AvgPool2d(2), 20)),
        _Plan("linear small", (48,), lambda: _dense([48, 64, 32], nn.ReLU), (8, 64)),
        _Plan("linear", (256,), lambda: _dense([256, 384, 192], nn.Tanh), (8, 64)),
        _Plan("linear wide", (1024,), lambda: _dense([1024, 512], nn.ReLU), (8, 48)),
        _Plan("linear widest", (2048,), lambda: _dense([2048, 1024], nn.ReLU), (8, 24)),
        _Plan("linear norm", (192,), lambda: _dense([192, 256, 128], nn.GELU, norm=True), (8, 64)),
        _Plan("linear adam", (320,), lambda: _dense([320, 256], nn.Sigmoid), (8, 48), Optimizer("adam")),
        _Plan("attention narrow", (3, 28, 28), lambda: _Attention(12, 3, 49), (4, 24)),
        _Plan("attention", (3, 32, 32), lambda: _Attention(48, 4, 64), (2, 12)),
        _Plan("attention wide", (3, 24, 24), lambda: _Attention(96, 3, 36), (4, 16)),
        _Plan("attention apart", (3, 32, 32), lambda: _Attention(24, 2, 64, apart=True), (2, 16)),
        _Plan("lstm very narrow", (24, 8), lambda: _Recurrent(nn.LSTM, 8, 8), (8, 48)),
        _Plan("lstm", (16, 24), lambda: _Recurrent(nn.LSTM, 24, 48), (8, 40)),
        _Plan("lstm wide", (12, 96), lambda: _Recurrent(nn.LSTM, 96, 192), (8, 32)),
        _Plan("lstm narrow", (20, 12), lambda: _Recurrent(nn.LSTM, 12, 14), (8, 48)),
        _Plan("lstm long", (24, 32), lambda: _Recurrent(nn.LSTM, 32, 96), (16, 56)),
        _Plan("lstm widest", (8, 256), lambda: _Recurrent(nn.LSTM, 256, 256), (8, 24)),
        _Plan("series narrow", (9, 120), lambda: _series(9, 4, 120), (8, 64)),
        _Plan("series", (6, 96), lambda: _series(6, 24, 96), (8, 40)),
    ]


def make_probes() -> list[Probe]:
    """All probes, built anew."""
    probes = []
    for plan in _plans():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = plan.make()
        spec = ModelSpec(f"probe:{plan.name}", plan.shape, CLASSES)
        probes.append(Probe(plan.name, list(plan.batches), build(Structure(spec, optimizer=plan.optimizer), module)))
    return probes


def write(path: Path) -> None:
    """Write the file that devices read."""
    path.write_bytes(pack_probes(make_probes()))


if __name__ == "__main__":
    write(Path(str(PROBES)))
