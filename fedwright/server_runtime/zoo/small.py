"""Small models for vectors and small images: MLP, the digits CNN and two LeNets."""

from collections import OrderedDict

from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.artifacts.structure import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, Width, ZooModel, assembled, flat_size, image_shape


def chain(*named: tuple[str, nn.Module]) -> nn.Sequential:
    """A sequence of named modules."""
    return nn.Sequential(OrderedDict(named))


def conv_unit(make: Layers, source: Width, target: Width, kernel: int, *, padding: int, pool: bool) -> nn.Sequential:
    """Convolution, ReLU and, if asked, 2×2 max pooling."""
    layers: list[nn.Module] = [make.conv(source, target, kernel, padding=padding), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


def fc_unit(make: Layers, source: Width, target: Width, *, inner: int = 1) -> nn.Sequential:
    """Linear layer and ReLU; reads a map when `inner` > 1, which it flattens first."""
    layers: list[nn.Module] = [make.linear(source, target, inner=inner), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers) if inner > 1 else nn.Sequential(*layers)


def _mlp(spec: ModelSpec, make: Layers) -> ZooModel:
    inputs = 1
    for length in spec.input_shape:
        inputs *= length
    first = nn.Sequential(nn.Flatten(), make.linear(inputs, "fc1"), nn.ReLU())
    encoder = chain(("fc1", first), ("fc2", fc_unit(make, "fc1", "fc2")))
    return assembled(make, encoder, make.linear("fc2", spec.classes))


def _cnn_small(spec: ModelSpec, make: Layers) -> ZooModel:
    channels, height, width = image_shape(spec, 4)
    convs = chain(
        ("conv1", conv_unit(make, channels, "conv1", 3, padding=1, pool=False)),
        ("conv2", conv_unit(make, "conv1", "conv2", 3, padding=1, pool=True)),
    )
    convs.add_module("fc1", _flat_fc(make, convs, "conv2", "fc1", (channels, height, width)))
    return assembled(make, convs, make.linear("fc1", spec.classes))


def _lenet(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, 8)
    convs = chain(
        ("conv1", conv_unit(make, shape[0], "conv1", 5, padding=2, pool=True)),
        ("conv2", conv_unit(make, "conv1", "conv2", 5, padding=2, pool=True)),
    )
    convs.add_module("fc1", _flat_fc(make, convs, "conv2", "fc1", shape))
    return assembled(make, convs, make.linear("fc1", spec.classes))


def _lenet_valid(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, 16)
    convs = chain(
        ("conv1", conv_unit(make, shape[0], "conv1", 5, padding=0, pool=True)),
        ("conv2", conv_unit(make, "conv1", "conv2", 5, padding=0, pool=True)),
    )
    convs.add_module("fc1", _flat_fc(make, convs, "conv2", "fc1", shape))
    convs.add_module("fc2", fc_unit(make, "fc1", "fc2"))
    return assembled(make, convs, make.linear("fc2", spec.classes))


def _flat_fc(make: Layers, convs: nn.Module, source: str, target: str, shape: tuple[int, int, int]) -> nn.Sequential:
    positions = flat_size(convs, shape)
    if positions < 1:
        raise ConfigError(f"an input of shape {shape} is too small: nothing is left of it before the linear layers")
    return nn.Sequential(nn.Flatten(), make.linear(source, target, inner=positions), nn.ReLU())


ENTRIES = (
    ModelEntry("mlp", "two hidden layers", "vector", {"fc1": 128, "fc2": 64}, (64,), 10, _mlp),
    ModelEntry(
        "cnn-small",
        "two 3×3 convolutions, for 8×8 digits",
        "image",
        {"conv1": 16, "conv2": 32, "fc1": 32},
        (1, 8, 8),
        10,
        _cnn_small,
    ),
    ModelEntry(
        "lenet",
        "LeNet with 16 and 32 padded 5×5 filters",
        "image",
        {"conv1": 16, "conv2": 32, "fc1": 128},
        (1, 28, 28),
        10,
        _lenet,
    ),
    ModelEntry(
        "lenet-valid",
        "LeNet as in LG-FedAvg and HyperFLoRA: 6 and 16 unpadded 5×5 filters",
        "image",
        {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 100},
        (3, 32, 32),
        10,
        _lenet_valid,
    ),
)
