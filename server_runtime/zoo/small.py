"""Small models for vectors and small images: MLP, LeNets and the small CNNs of the papers."""

from dataclasses import replace
from math import prod

from torch import nn

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import (
    Layers,
    ModelEntry,
    Width,
    ZooModel,
    assembled,
    chain,
    flat_size,
    image_shape,
)


def conv_unit(make: Layers, source: Width, target: Width, kernel: int, *, padding: int, pool: bool) -> nn.Sequential:
    """Convolution, ReLU and, if asked, 2×2 max pooling."""
    layers: list[nn.Module] = [make.conv(source, target, kernel, padding=padding), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


def norm_unit(make: Layers, source: Width, target: Width, *, pool: bool) -> nn.Sequential:
    """3×3 convolution, group normalisation, ReLU and, if asked, 2×2 max pooling."""
    layers: list[nn.Module] = [make.bare_conv(source, target, 3), make.group_norm(target), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


def fc_unit(make: Layers, source: Width, target: Width) -> nn.Sequential:
    """Linear layer and ReLU."""
    return nn.Sequential(make.linear(source, target), nn.ReLU())


def flat_unit(make: Layers, convs: nn.Module, source: str, target: Width, *, shape: tuple[int, ...]) -> nn.Sequential:
    """Flatten what `convs` make of an input of this shape, then linear layer and ReLU."""
    return nn.Sequential(nn.Flatten(), make.linear(source, target, inner=flat_size(convs, shape)), nn.ReLU())


def _mlp(spec: ModelSpec, make: Layers) -> ZooModel:
    first = nn.Sequential(nn.Flatten(), make.linear(prod(spec.input_shape), "fc1"), nn.ReLU())
    return assembled(chain(("fc1", first), ("fc2", fc_unit(make, "fc1", "fc2"))), make.linear("fc2", spec.classes))


def _cnn_small(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, 4)
    encoder = chain(
        ("conv1", conv_unit(make, shape[0], "conv1", 3, padding=1, pool=False)),
        ("conv2", conv_unit(make, "conv1", "conv2", 3, padding=1, pool=True)),
    )
    encoder.add_module("fc1", flat_unit(make, encoder, "conv2", "fc1", shape=shape))
    return assembled(encoder, make.linear("fc1", spec.classes))


def _lenet(spec: ModelSpec, make: Layers) -> ZooModel:
    encoder = _two_convs(spec, make, padding=2, least=8)
    encoder.add_module("fc1", flat_unit(make, encoder, "conv2", "fc1", shape=spec.input_shape))
    return assembled(encoder, make.linear("fc1", spec.classes))


def _lenet_valid(spec: ModelSpec, make: Layers) -> ZooModel:
    encoder = _two_convs(spec, make, padding=0, least=16)
    encoder.add_module("fc1", flat_unit(make, encoder, "conv2", "fc1", shape=spec.input_shape))
    encoder.add_module("fc2", fc_unit(make, "fc1", "fc2"))
    return assembled(encoder, make.linear("fc2", spec.classes))


def _cnn_flat(spec: ModelSpec, make: Layers) -> ZooModel:
    encoder = _two_convs(spec, make, padding=2, least=8)
    inner = flat_size(encoder, spec.input_shape)
    encoder.add_module("conv2", nn.Sequential(*encoder.get_submodule("conv2").children(), nn.Flatten()))
    return assembled(encoder, make.linear("conv2", spec.classes, inner=inner))


def _cnn_gn(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, 8)
    encoder = chain(
        ("conv1", norm_unit(make, shape[0], "conv1", pool=True)),
        ("conv2", norm_unit(make, "conv1", "conv2", pool=True)),
    )
    encoder.add_module("fc1", flat_unit(make, encoder, "conv2", "fc1", shape=shape))
    return assembled(encoder, make.linear("fc1", spec.classes))


def _cnn_hasa(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, 8)
    encoder = chain(
        ("conv1", conv_unit(make, shape[0], "conv1", 3, padding=1, pool=True)),
        ("conv2", conv_unit(make, "conv1", "conv2", 3, padding=1, pool=True)),
        ("conv3", conv_unit(make, "conv2", "conv3", 3, padding=1, pool=True)),
    )
    # The paper cuts convolutions only; its linear layer keeps all 256 outputs.
    encoder.add_module("fc1", flat_unit(make, encoder, "conv3", 256, shape=shape))
    return assembled(encoder, make.linear(256, spec.classes))


def _two_convs(spec: ModelSpec, make: Layers, *, padding: int, least: int) -> nn.Sequential:
    channels, _, _ = image_shape(spec, least)
    return chain(
        ("conv1", conv_unit(make, channels, "conv1", 5, padding=padding, pool=True)),
        ("conv2", conv_unit(make, "conv1", "conv2", 5, padding=padding, pool=True)),
    )


_MLP = ModelEntry("mlp", "vector", {"fc1": 128, "fc2": 64}, (64,), 10, _mlp)
_WIDE_MLP = replace(_MLP, sizes={"fc1": 1024, "fc2": 1024}, example_shape=(784,))
_CNN_SMALL = ModelEntry("cnn-small", "image", {"conv1": 16, "conv2": 32, "fc1": 32}, (1, 8, 8), 10, _cnn_small)
_VALID_SIZES = {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 100}
_LENET_VALID = ModelEntry("lenet-valid", "image", _VALID_SIZES, (3, 32, 32), 10, _lenet_valid)
_HASA_SIZES = {"conv1": 64, "conv2": 128, "conv3": 256}

ENTRIES = (
    _MLP,
    _WIDE_MLP.with_adapters("mlp-lora", rank=8),
    _CNN_SMALL,
    _CNN_SMALL.with_adapters("cnn-lora", rank=4),
    ModelEntry("lenet", "image", {"conv1": 16, "conv2": 32, "fc1": 128}, (1, 28, 28), 10, _lenet),
    _LENET_VALID,
    _LENET_VALID.with_adapters("lenet-lora", rank=4),
    ModelEntry("cnn-flat", "image", {"conv1": 16, "conv2": 32}, (1, 28, 28), 10, _cnn_flat),
    ModelEntry("cnn-gn", "image", {"conv1": 16, "conv2": 32, "fc1": 64}, (1, 28, 28), 10, _cnn_gn),
    ModelEntry("cnn-hasa", "image", _HASA_SIZES, (3, 32, 32), 10, _cnn_hasa),
)
