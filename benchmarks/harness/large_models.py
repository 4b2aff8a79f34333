"""Transformers in the sizes of public ones, with drawn weights: what `fedwright bench large` fine-tunes a part of."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WORDS, HEAD_SIZE = 50_257, 64, 64


class Block(nn.Module):
    """Attention over what came before, then two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD_SIZE)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[samples, words, width]"""
        samples, words, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, dim=2)
        q, k, v = (p.reshape(samples, words, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        share = ((q @ k.transpose(2, 3)) * (width // self.heads) ** -0.5 + mask).softmax(-1)
        x = x + self.out((share @ v).transpose(1, 2).reshape(samples, words, width))
        changed: torch.Tensor = x + self.down(functional.gelu(self.up(self.after(x))))
        return changed


class Transformer(nn.Module):
    """Reads word numbers, tells one of a few classes."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(WORDS, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.register_buffer("mask", torch.full((WORDS, WORDS), -1e9).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[samples, classes]"""
        found = self.words(x) + self.places
        for block in self.blocks:
            found = block(found, self.mask)
        answer: torch.Tensor = self.head(self.norm(found).mean(1))
        return answer


def make_base(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """124 million parameters, as many as the smallest GPT-2."""
    return Transformer(768, 12, classes)


def make_quarter(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same with three layers, for the quick form."""
    return Transformer(768, 3, classes)


def make_wide(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer of a model of a billion parameters."""
    return Transformer(2048, 1, classes)


def make_wider(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers of it."""
    return Transformer(2048, 2, classes)
