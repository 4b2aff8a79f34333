"""MobileNet V1, V2 and V3-small.

A depthwise filter belongs to the channel group of its input; blocks that are summed share their trunk's group.
Under 64 pixels the first two strides are dropped, as is usual for CIFAR. Dropout before the classes is left out.
"""

from torch import Tensor, nn

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, Width, ZooModel, assembled, chain, image_shape
from fedwright.server_runtime.zoo.resnet import SMALL_IMAGE, ResidualBlock

# Channels and stride of each block.
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)) + ((512, 1),) * 5 + ((1024, 2), (1024, 1))
# Expansion, channels, repeats and stride of each stage.
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# Kernel, expanded channels, channels, squeeze?, hard swish? and stride of each block.
_V3 = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


class SqueezeExcite(nn.Module):
    """x scaled per channel by what two 1×1 convolutions make of its spatial mean."""

    def __init__(self, make: Layers, width: str, squeezed: str) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            make.conv(width, squeezed, 1),
            nn.ReLU(),
            make.conv(squeezed, width, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The scaled map."""
        return x * self.gate(x)  # type: ignore[no-any-return]


class Strides:
    """Gives out strides in order; on small images the first two above 1 become 1."""

    def __init__(self, *, small: bool) -> None:
        self._to_drop = 2 if small else 0

    def next(self, stride: int) -> int:
        """The stride to use for the next layer."""
        if stride > 1 and self._to_drop:
            self._to_drop -= 1
            return 1
        return stride


def _conv_bn(make: Layers, source: Width, target: Width, kernel: int, *, stride: int, act: nn.Module) -> nn.Sequential:
    return nn.Sequential(make.bare_conv(source, target, kernel, stride=stride), make.batch_norm(target), act)


def _depthwise_bn(make: Layers, width: Width, kernel: int, *, stride: int, act: nn.Module) -> nn.Sequential:
    return nn.Sequential(make.depthwise(width, kernel, stride=stride), make.batch_norm(width), act)


def _pooled(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _v1(spec: ModelSpec, make: Layers) -> ZooModel:
    channels, height, _ = image_shape(spec, 16)
    strides = Strides(small=height < SMALL_IMAGE)
    encoder = chain(("stem", _conv_bn(make, channels, "stem", 3, stride=strides.next(2), act=nn.ReLU())))
    source = "stem"
    for number, (_, stride) in enumerate(_V1, start=1):
        target = f"block{number}"
        block = nn.Sequential(
            _depthwise_bn(make, source, 3, stride=strides.next(stride), act=nn.ReLU()),
            _conv_bn(make, source, target, 1, stride=1, act=nn.ReLU()),
        )
        encoder.add_module(target, _pooled(block) if number == len(_V1) else block)
        source = target
    return assembled(encoder, make.linear(source, spec.classes))


def _v2(spec: ModelSpec, make: Layers) -> ZooModel:
    channels, height, _ = image_shape(spec, 16)
    strides = Strides(small=height < SMALL_IMAGE)
    encoder = chain(("stem", _conv_bn(make, channels, "stem", 3, stride=strides.next(2), act=nn.ReLU6())))
    source = "stem"
    for stage, (expansion, _, repeats, stride) in enumerate(_V2, start=1):
        target = f"stage{stage}"
        for number in range(1, repeats + 1):
            name = f"stage{stage}_{number}"
            step = strides.next(stride) if number == 1 else 1
            inside = source if expansion == 1 else name
            encoder.add_module(name, _v2_block(make, (source, inside, target), stride=step))
            source = target
    encoder.add_module("last", _pooled(_conv_bn(make, source, "last", 1, stride=1, act=nn.ReLU6())))
    return assembled(encoder, make.linear("last", spec.classes))


def _v2_block(make: Layers, groups: tuple[str, str, str], *, stride: int) -> nn.Module:
    source, inside, target = groups
    widen = [] if inside == source else [_conv_bn(make, source, inside, 1, stride=1, act=nn.ReLU6())]
    body = nn.Sequential(
        *widen,
        _depthwise_bn(make, inside, 3, stride=stride, act=nn.ReLU6()),
        make.bare_conv(inside, target, 1),
        make.batch_norm(target),
    )
    return ResidualBlock(body, nn.Identity(), nn.Identity()) if source == target and stride == 1 else body


def _v3(spec: ModelSpec, make: Layers) -> ZooModel:
    channels, height, _ = image_shape(spec, 16)
    strides = Strides(small=height < SMALL_IMAGE)
    encoder = chain(("stem", _conv_bn(make, channels, "stem", 3, stride=strides.next(2), act=nn.Hardswish())))
    source = "stem"
    for number, (kernel, target, squeeze, hard, stride) in enumerate(_v3_rows(), start=1):
        # The first block does not widen, so its depthwise filters work on the stem's own channels.
        groups = (source, source if number == 1 else f"block{number}", target)
        squeezed = f"block{number}_squeeze" if squeeze else None
        body = _v3_body(make, groups, (kernel, strides.next(stride)), squeezed, hard=hard)
        skip = source == target and stride == 1
        encoder.add_module(f"block{number}", ResidualBlock(body, nn.Identity(), nn.Identity()) if skip else body)
        source = target
    encoder.add_module("last", _pooled(_conv_bn(make, source, "last", 1, stride=1, act=nn.Hardswish())))
    encoder.add_module("fc1", nn.Sequential(make.linear("last", "fc1"), nn.Hardswish()))
    return assembled(encoder, make.linear("fc1", spec.classes))


def _v3_rows() -> list[tuple[int, str, bool, bool, int]]:
    """Each block with the group of its trunk: a new one whenever the channels or the map change."""
    rows: list[tuple[int, str, bool, bool, int]] = []
    trunk = 0
    before = 16
    for kernel, _, target, squeeze, hard, stride in _V3:
        trunk += target != before or stride > 1
        before = target
        rows.append((kernel, f"trunk{trunk}", squeeze, hard, stride))
    return rows


def _v3_body(
    make: Layers, groups: tuple[str, str, str], shape: tuple[int, int], squeezed: str | None, *, hard: bool
) -> nn.Sequential:
    source, inside, target = groups
    kernel, stride = shape
    act: type[nn.Module] = nn.Hardswish if hard else nn.ReLU
    layers: list[nn.Module] = []
    if inside != source:
        layers.append(_conv_bn(make, source, inside, 1, stride=1, act=act()))
    layers.append(_depthwise_bn(make, inside, kernel, stride=stride, act=act()))
    if squeezed is not None:
        layers.append(SqueezeExcite(make, inside, squeezed))
    return nn.Sequential(*layers, make.bare_conv(inside, target, 1), make.batch_norm(target))


def _v2_sizes() -> dict[str, int]:
    found = {"stem": 32}
    source = 32
    for stage, (expansion, size, repeats, _) in enumerate(_V2, start=1):
        found[f"stage{stage}"] = size
        for number in range(1, repeats + 1):
            if expansion > 1:
                found[f"stage{stage}_{number}"] = expansion * source
            source = size
    return found | {"last": 1280}


def _v3_sizes() -> dict[str, int]:
    found = {"stem": 16}
    for number, ((_, expanded, size, squeeze, _, _), row) in enumerate(zip(_V3, _v3_rows(), strict=True), start=1):
        found[row[1]] = size
        if number > 1:
            found[f"block{number}"] = expanded
        if squeeze:
            # A quarter, to the nearest multiple of eight, at least eight.
            found[f"block{number}_squeeze"] = max(8, (expanded // 4 + 4) // 8 * 8)
    return found | {"last": 576, "fc1": 1024}


_V1_SIZES = {"stem": 32} | {f"block{number}": size for number, (size, _) in enumerate(_V1, start=1)}
ENTRIES = (
    ModelEntry("mobilenet-v1", "MobileNetV1: depthwise separable", "image", _V1_SIZES, (3, 32, 32), 10, _v1),
    ModelEntry("mobilenet-v2", "MobileNetV2: inverted residuals", "image", _v2_sizes(), (3, 32, 32), 10, _v2),
    ModelEntry("mobilenet-v3", "MobileNetV3-small: squeeze and excitation", "image", _v3_sizes(), (3, 32, 32), 10, _v3),
)
