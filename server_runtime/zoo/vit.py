"""ViT-tiny: patches of 4, width 64, 4 blocks of 4 heads, class token (HyperFLoRA's), with or without adapters.

The residual trunk is one channel group. Heads are cut inside: queries and keys of a block share a group, values and
the input of the output projection share another.
"""

import torch
from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axis
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, ZooModel, assembled, axis, chain, image_shape
from fedwright.server_runtime.zoo.resnet import ResidualBlock

PATCH = 4
HEADS = 4
DEPTH = 4
TRUNK = "dim"


class PatchTokens(nn.Module):
    """Patches as tokens behind a class token, each with its learned position: [n, 1 + patches, dim]."""

    def __init__(self, make: Layers, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.size = make.size(TRUNK)
        self.count = (height // PATCH) * (width // PATCH)
        self.patches = make.conv(channels, TRUNK, PATCH, stride=PATCH)
        self.first = nn.Parameter(torch.empty(1, 1, self.size))
        self.position = nn.Parameter(torch.empty(1, 1 + self.count, self.size))
        nn.init.trunc_normal_(self.first, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)
        make.tag(self, first=(None, None, axis(TRUNK)), position=(None, None, axis(TRUNK)))

    def forward(self, x: Tensor) -> Tensor:
        """The tokens of a batch of images."""
        tokens = self.patches(x).reshape(-1, self.size, self.count).transpose(1, 2)
        first = self.first.expand(x.shape[0], 1, self.size)
        return torch.cat([first, tokens], dim=1) + self.position


class Attention(nn.Module):
    """Softmax attention over tokens; heads keep their number and lose width when the model is cut."""

    def __init__(self, make: Layers, qk: str, v: str, *, tokens: int) -> None:
        super().__init__()
        # Known beforehand, so that the exported graph has constant shapes but for the batch.
        self.tokens = tokens
        self.qk_size, self.v_size = make.size(qk), make.size(v)
        dim = make.size(TRUNK)
        into, keys, values = axis(TRUNK), Axis(qk, outer=HEADS), Axis(v, outer=HEADS)
        self.query = make.linear_between(into, keys, dim, HEADS * self.qk_size)
        self.key = make.linear_between(into, keys, dim, HEADS * self.qk_size)
        self.value = make.linear_between(into, values, dim, HEADS * self.v_size)
        self.out = make.linear_between(values, into, HEADS * self.v_size, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[n, tokens, dim] to the same."""
        query = self.query(x).reshape(-1, self.tokens, HEADS, self.qk_size).transpose(1, 2)
        key = self.key(x).reshape(-1, self.tokens, HEADS, self.qk_size).permute(0, 2, 3, 1)
        value = self.value(x).reshape(-1, self.tokens, HEADS, self.v_size).transpose(1, 2)
        weights = torch.softmax(query @ key * self.qk_size**-0.5, dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(-1, self.tokens, HEADS * self.v_size)
        return self.out(mixed)  # type: ignore[no-any-return]


class FirstToken(nn.Module):
    """The class token alone."""

    def forward(self, x: Tensor) -> Tensor:
        """[n, tokens, dim] to [n, dim]."""
        return x[:, 0]


def _block(make: Layers, number: int, *, tokens: int) -> nn.Sequential:
    attention = nn.Sequential(make.layer_norm(TRUNK), Attention(make, f"qk{number}", f"v{number}", tokens=tokens))
    hidden = f"mlp{number}"
    mlp = nn.Sequential(
        make.layer_norm(TRUNK),
        make.linear(TRUNK, hidden, adapt=False),
        nn.GELU(),
        make.linear(hidden, TRUNK, adapt=False),
    )
    return nn.Sequential(
        ResidualBlock(attention, nn.Identity(), nn.Identity()), ResidualBlock(mlp, nn.Identity(), nn.Identity())
    )


def _vit(spec: ModelSpec, make: Layers) -> ZooModel:
    shape = image_shape(spec, PATCH)
    if shape[1] % PATCH or shape[2] % PATCH:
        raise ConfigError(
            f"model {spec.model} cuts images into {PATCH}×{PATCH} patches but the input is {shape}; pad it"
        )
    tokens = PatchTokens(make, shape)
    encoder = chain(("tokens", tokens))
    for number in range(1, DEPTH + 1):
        encoder.add_module(f"block{number}", _block(make, number, tokens=1 + tokens.count))
    encoder.add_module("norm", nn.Sequential(make.layer_norm(TRUNK), FirstToken()))
    return assembled(encoder, make.linear(TRUNK, spec.classes))


_SIZES = {TRUNK: 64}
for _number in range(1, DEPTH + 1):
    _SIZES |= {f"qk{_number}": 16, f"v{_number}": 16, f"mlp{_number}": 256}

_VIT = ModelEntry("vit-tiny", "image", _SIZES, (3, 32, 32), 10, _vit)
ENTRIES = (_VIT, _VIT.with_adapters("vit-lora", rank=4))
