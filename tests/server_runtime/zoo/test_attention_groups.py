"""Attention in a user's own module is cut by heads, or inside them; groups may also be declared."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axis, group_sizes, prefix_plan, put, take
from fedwright.server_runtime.zoo.derive_groups import declared_axes, derived_axes, shrink

TOKENS, FEATURES = 5, 3
SHAPE = (TOKENS, FEATURES)


class Encoder(nn.Module):
    """Two encoder layers of torch behind a projection, a class token and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, 12)
        self.first = nn.Parameter(torch.randn(1, 1, 12))
        self.position = nn.Parameter(torch.randn(1, 1 + TOKENS, 12))
        layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(12), enable_nested_tensor=False)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), self.embed(x)], 1) + self.position
        answer: Tensor = self.head(self.encoder(x)[:, 0])
        return answer


class OneLayer(nn.Module):
    """An encoder layer by itself, over raw features that cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(FEATURES, 1, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(FEATURES, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x).mean(1))
        return answer


class Bare(nn.Module):
    """Attention without normalisation: what is cut is exactly what is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, 12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        mixed, _ = self.attention(x, x, x, need_weights=False)
        answer: Tensor = self.head((x + mixed).mean(1))
        return answer


class Projections(nn.Module):
    """Queries, keys and values by layers of their own, and what comes after attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(FEATURES, 12) for _ in range(3))
        self.out = nn.Linear(12, 6)
        self.head = nn.Linear(6, 4)


class Heads(Projections):
    """Attention written out, with any number of heads of width 4."""

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), -1, 4).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        answer: Tensor = self.head(self.out(mixed.transpose(1, 2).flatten(2)).mean(1))
        return answer


class Inside(Projections):
    """Attention written out by products, with three heads of any width; the scale does not depend on it."""

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (3, -1)).transpose(1, 2)
        key = self.key(x).unflatten(-1, (3, -1)).permute(0, 2, 3, 1)
        value = self.value(x).unflatten(-1, (3, -1)).transpose(1, 2)
        weights = torch.softmax(query @ key * 0.5, dim=-1)
        mixed = (weights @ value).transpose(1, 2)
        answer: Tensor = self.head(self.out(mixed.reshape(mixed.shape[0], mixed.shape[1], -1)).mean(1))
        return answer


class Packed(nn.Module):
    """Queries, keys and values of one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Linear(FEATURES, 36)
        self.out = nn.Linear(12, 6)
        self.head = nn.Linear(6, 4)


class Chunked(Packed):
    """Taken apart in chunks; heads of width 4."""

    def forward(self, x: Tensor) -> Tensor:
        parts = self.packed(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in (parts[0], parts[1], parts[2]))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        answer: Tensor = self.head(self.out(mixed.transpose(1, 2).flatten(2)).mean(1))
        return answer


class Unbound(Packed):
    """By a view of five axes and `unbind`, as vision transformers write it; three heads of any width."""

    def forward(self, x: Tensor) -> Tensor:
        packed = self.packed(x).reshape(x.shape[0], x.shape[1], 3, 3, -1).permute(2, 0, 3, 1, 4)
        query, key, value = packed.unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) * 0.5, dim=-1)
        answer: Tensor = self.head(self.out((weights @ value).transpose(1, 2).flatten(2)).mean(1))
        return answer


class Declared(nn.Module):
    """Groups that it names itself: a packed projection behind which no rule follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Linear(FEATURES, 16)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.pair(x).chunk(2, -1)
        answer: Tensor = self.head((one * torch.sigmoid(other)).cumsum(1)[:, -1])
        return answer

    def channel_groups(self) -> dict[str, Any]:
        return {"pair.weight": (("gated", 2, 1), None), "pair.bias": (("gated", 2, 1),), "head.weight": (None, "gated")}


GROUPS: dict[type[nn.Module], dict[str, int]] = {
    Encoder: {"encoder.layers.0.self_attn": 3, "encoder.layers.0.linear1": 20, "encoder.layers.1.linear1": 20},
    OneLayer: {"layer.linear1": 8},
    Bare: {"attention": 3},
    Heads: {"view": 3, "out": 6},
    Inside: {"unflatten": 4, "unflatten_2": 4, "out": 6},
    Chunked: {"unflatten": 3, "out": 6},
    Unbound: {"reshape": 4, "out": 6},
    Declared: {"gated": 8},
}
# Normalisation over a trunk that was cut sees other means than over one with zeros.
EXACT = [kind for kind in GROUPS if kind is not Encoder]
every_kind = pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)


def seeded(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind().eval()


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in module.state_dict().items()}


def axes_of(module: nn.Module) -> dict[str, Any]:
    return declared_axes(module) or derived_axes(module, SHAPE)


def batch() -> Tensor:
    return torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(1))


@every_kind
def test_groups_of_a_module(kind: Any) -> None:
    module = seeded(kind)

    assert group_sizes(arrays(module), axes_of(module)) == GROUPS[kind]


@every_kind
def test_at_full_size_nothing_changes(kind: Any) -> None:
    whole, same = seeded(kind), seeded(kind)

    shrink(same, axes_of(whole), GROUPS[kind], SHAPE)

    with torch.no_grad():
        torch.testing.assert_close(same(batch()), whole(batch()), rtol=0, atol=0)


@every_kind
def test_a_cut_module_has_the_taken_weights_and_trains(kind: Any) -> None:
    whole, small = seeded(kind), seeded(kind)
    axes, sizes = axes_of(whole), {group: max(1, size // 2) for group, size in GROUPS[kind].items()}

    shrink(small, axes, sizes, SHAPE)
    small.train()(batch()).sum().backward()

    part = take(arrays(whole), axes, prefix_plan(GROUPS[kind], sizes))
    for name, value in arrays(small).items():
        np.testing.assert_array_equal(value, part[name])
    assert all(value.grad is not None for value in small.parameters())


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.__name__)
def test_a_cut_module_computes_what_the_zeroed_whole_does(kind: type[nn.Module]) -> None:
    whole, small = seeded(kind), seeded(kind)
    axes, sizes = axes_of(whole), {group: max(1, size // 2) for group, size in GROUPS[kind].items()}
    plan, state = prefix_plan(GROUPS[kind], sizes), arrays(whole)
    zeroed = put({n: np.zeros_like(v) for n, v in state.items()}, take(state, axes, plan), axes, plan)

    shrink(small, axes, sizes, SHAPE)
    whole.load_state_dict({name: torch.from_numpy(value) for name, value in zeroed.items()})

    with torch.no_grad():
        torch.testing.assert_close(small(batch()), whole(batch()), rtol=1e-4, atol=1e-6)


def test_the_trunk_of_an_encoder_is_cut_by_heads() -> None:
    axes = derived_axes(seeded(Encoder), SHAPE)
    heads = "encoder.layers.0.self_attn"

    assert axes["embed.weight"] == (Axis(heads, inner=4), None)
    assert axes["position"] == (None, None, Axis(heads, inner=4))
    assert axes["encoder.layers.1.self_attn.in_proj_weight"] == (Axis(heads, outer=3, inner=4), Axis(heads, inner=4))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ([], r"gives a list; it must give a dict"),
        ({"nothing": (None,)}, r"names 'nothing', which is no tensor of it"),
        ({"head.weight": ("gated",)}, r"must give 2 axes for head\.weight"),
        ({"head.weight": (None, 3)}, r"has 3 for an axis; give None, 'group' or"),
        ({"head.weight": (None, ("gated", 0, 1))}, r"has \('gated', 0, 1\) for an axis"),
    ],
)
def test_groups_that_are_declared_wrong(said: object, sentence: str) -> None:
    module = seeded(Declared)
    module.channel_groups = lambda: said  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"channel_groups\(\) of Declared " + sentence):
        declared_axes(module)
