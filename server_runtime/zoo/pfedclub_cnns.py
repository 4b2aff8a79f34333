"""CNN1 to CNN4 of pFedClub: four unlike convolutional nets whose blocks can stand in for one another."""

from itertools import pairwise

from torch import nn

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, ZooModel, assembled, chain, image_shape
from fedwright.server_runtime.zoo.small import conv_unit, fc_unit, flat_unit

Convs = tuple[tuple[int, bool, bool], ...]

# (kernel, batch normalisation, pool) per convolution; 5×5 ones are unpadded, 3×3 ones padded.
_CONVS: dict[str, Convs] = {
    "cnn1": ((5, False, True), (5, False, True)),
    "cnn2": ((5, False, True), (5, False, True), (3, False, False)),
    "cnn3": ((3, False, False), (3, False, True), (3, False, False), (3, False, True), (3, False, True)),
    "cnn4": (
        (3, True, False), (3, False, True), (3, True, False), (3, False, True), (3, True, False), (3, False, True),
    ),
}  # fmt: skip
_SIZES = {
    "cnn1": {"conv1": 10, "conv2": 64, "fc1": 50},
    "cnn2": {"conv1": 10, "conv2": 64, "conv3": 64, "fc1": 50},
    "cnn3": {"conv1": 32, "conv2": 32, "conv3": 64, "conv4": 64, "conv5": 128, "fc1": 256, "fc2": 128, "fc3": 64},
    "cnn4": {"conv1": 32, "conv2": 64, "conv3": 128, "conv4": 128, "conv5": 256, "conv6": 256, "fc1": 1024, "fc2": 512},
}
_SUMMARIES = {
    "cnn1": "pFedClub's CNN1: 2 convolutions, 2 linear layers",
    "cnn2": "pFedClub's CNN2: 3 convolutions, 2 linear layers",
    "cnn3": "pFedClub's CNN3: 5 convolutions, 4 linear layers",
    "cnn4": "pFedClub's CNN4: 6 convolutions, 3 of them normalised, 3 linear layers",
}


def _club(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, 16)
    encoder = chain()
    source: str | int = shape[0]
    for number, (kernel, norm, pool) in enumerate(_CONVS[spec.model], start=1):
        name = f"conv{number}"
        encoder.add_module(name, _unit(make, (source, name), kernel, norm=norm, pool=pool))
        source = name
    linear = [group for group in make.sizes if group.startswith("fc")]
    encoder.add_module(linear[0], flat_unit(make, encoder, str(source), linear[0], shape=shape))
    for before, after in pairwise(linear):
        encoder.add_module(after, fc_unit(make, before, after))
    return assembled(encoder, make.linear(linear[-1], spec.classes))


def _unit(make: Layers, ends: tuple[str | int, str], kernel: int, *, norm: bool, pool: bool) -> nn.Sequential:
    source, target = ends
    if not norm:
        return conv_unit(make, source, target, kernel, padding=0 if kernel == 5 else 1, pool=pool)
    layers = [make.bare_conv(source, target, kernel), make.batch_norm(target), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


ENTRIES = tuple(
    ModelEntry(name, summary, "image", _SIZES[name], (3, 32, 32), 10, _club) for name, summary in _SUMMARIES.items()
)
