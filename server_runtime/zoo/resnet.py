"""ResNet-8 and ResNet-18 with batch or group normalisation.

All that is summed shares one channel group: a stage's trunk, together with the stem in the first stage.
Images under 64 pixels get the 3×3 stem of the CIFAR variant.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, Width, ZooModel, assembled, chain, image_shape

SMALL_IMAGE = 64
Norm = Callable[[Width], nn.Module]


class ResidualBlock(nn.Module):
    """act(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return self.act(self.body(x) + self.shortcut(x))  # type: ignore[no-any-return]


def _resnet(spec: ModelSpec, make: Layers, *, depths: tuple[int, ...], group_norm: bool) -> ZooModel:
    channels, height, _ = image_shape(spec, 8)
    norm: Norm = make.group_norm if group_norm else make.batch_norm
    encoder = chain(("stem", _stem(make, channels, norm, small=height < SMALL_IMAGE)))
    source = "stage1"
    for stage, depth in enumerate(depths, start=1):
        for number in range(1, depth + 1):
            name = f"stage{stage}_{number}"
            stride = 2 if stage > 1 and number == 1 else 1
            encoder.add_module(name, _block(make, (source, name, f"stage{stage}"), norm, stride=stride))
            source = f"stage{stage}"
    last = f"stage{len(depths)}_{depths[-1]}"
    pooled = nn.Sequential(encoder.get_submodule(last), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    encoder.add_module(last, pooled)
    return assembled(encoder, make.linear(source, spec.classes))


def _stem(make: Layers, channels: int, norm: Norm, *, small: bool) -> nn.Sequential:
    if small:
        return nn.Sequential(make.bare_conv(channels, "stage1", 3), norm("stage1"), nn.ReLU())
    conv = make.bare_conv(channels, "stage1", 7, stride=2)
    return nn.Sequential(conv, norm("stage1"), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def _block(make: Layers, groups: tuple[str, str, str], norm: Norm, *, stride: int) -> ResidualBlock:
    source, inside, target = groups
    body = nn.Sequential(
        make.bare_conv(source, inside, 3, stride=stride),
        norm(inside),
        nn.ReLU(),
        make.bare_conv(inside, target, 3),
        norm(target),
    )
    same = source == target and stride == 1
    shortcut = nn.Identity() if same else nn.Sequential(make.bare_conv(source, target, 1, stride=stride), norm(target))
    return ResidualBlock(body, shortcut, nn.ReLU())


def _sizes(channels: tuple[int, ...], depths: tuple[int, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for stage, (size, depth) in enumerate(zip(channels, depths, strict=True), start=1):
        found[f"stage{stage}"] = size
        found |= {f"stage{stage}_{number}": size for number in range(1, depth + 1)}
    return found


def _entry(name: str, channels: tuple[int, ...], depths: tuple[int, ...], *, group_norm: bool) -> ModelEntry:
    kind = "group" if group_norm else "batch"
    return ModelEntry(
        name,
        f"ResNet-{2 * sum(depths) + 2} with {kind} normalisation",
        "image",
        _sizes(channels, depths),
        (3, 32, 32),
        10,
        partial(_resnet, depths=depths, group_norm=group_norm),
    )


_SMALL = ((16, 32, 64), (1, 1, 1))
_LARGE = ((64, 128, 256, 512), (2, 2, 2, 2))
ENTRIES = (
    _entry("resnet8", *_SMALL, group_norm=False),
    _entry("resnet8-gn", *_SMALL, group_norm=True),
    _entry("resnet18", *_LARGE, group_norm=False),
    _entry("resnet18-gn", *_LARGE, group_norm=True),
)
