"""Channel groups of modules that name none: found where channels can be followed, kept whole elsewhere."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axes, Axis, AxisLike, Joined, group_sizes, prefix_plan, put, take
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import MODELS, axes_of, create, full_sizes, scaled, sizes_of
from fedwright.server_runtime.zoo.derive_groups import derived_axes, shrink

# Left out: models whose own groups say more (adapters, heads) or less (a width kept on purpose) than can be derived.
SAME = [
    name
    for name in MODELS
    if name not in ("cnn-hasa", "lstm-lm", "gcn4") and not name.endswith("-lora") and not name.startswith("vit")
]


class Residual(nn.Module):
    """Two branches summed, then flattened: one group for what is summed, one inside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.inside = nn.Conv2d(6, 5, 3, padding=1)
        self.back = nn.Conv2d(5, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = self.norm(x + self.back(torch.relu(self.inside(x))))
        answer: Tensor = self.head(x.view(x.size(0), -1))
        return answer


class Concat(nn.Module):
    """Two branches side by side, a depthwise filter over both, spatial mean."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.other = nn.Conv2d(3, 6, 1)
        self.deep = nn.Conv2d(10, 10, 3, padding=1, groups=10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.one(x), self.other(x)], dim=1)
        answer: Tensor = self.head(self.deep(x).mean([2, 3]))
        return answer


class Recurrent(nn.Module):
    """Words, a gated layer of two, the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.layers = nn.GRU(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layers(self.words(x))
        answer: Tensor = self.head(states[:, -1])
        return answer


class Gated(nn.Module):
    """A learned vector that lies on the channels, and a gate per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.gate = nn.Linear(8, 8)
        self.shift = nn.Parameter(torch.linspace(0, 1, 8))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) + self.shift
        answer: Tensor = self.head(self.norm(x * torch.sigmoid(self.gate(x))))
        return answer


class Shared(nn.Module):
    """One layer used twice, so that its input and output are the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.again = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.again(self.again(self.first(x))))
        return answer


class Literal(nn.Module):
    """Names a channel count in its forward, so that the channels before it cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.hidden = nn.Linear(96, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.relu(self.hidden(self.conv(x).view(-1, 96))))
        return answer


class Unknown(nn.Module):
    """A function that has no rule, between two layers that could be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.relu(self.second(torch.cumsum(self.first(x), 1))))
        return answer


class Branching(nn.Module):
    """Looks at the values of its input, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(x if x.sum() > 0 else -x)
        return answer


IMAGE, VECTOR, WORDS = (3, 4, 4), (6,), (7,)
GROUPS: dict[type[nn.Module], tuple[tuple[int, ...], dict[str, int]]] = {
    Residual: (IMAGE, {"stem": 6, "inside": 5}),
    Concat: (IMAGE, {"one": 4, "other": 6}),
    Recurrent: (WORDS, {"words": 6, "layers.0": 8, "layers.1": 8}),
    Gated: (VECTOR, {"first": 8}),
    Shared: (VECTOR, {"first": 8}),
    Literal: (IMAGE, {"hidden": 10}),
    Unknown: (VECTOR, {"second": 5}),
}


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in module.state_dict().items()}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


def renamed(axes: Axes) -> dict[str, tuple[object, ...]]:
    """The same axes with groups numbered in the order of their appearance."""
    numbers: dict[str, int] = {}

    def plain(axis: AxisLike) -> object:
        if isinstance(axis, Joined):
            return [(plain(part), length) for part, length in axis.parts]
        return axis and (numbers.setdefault(axis.group, len(numbers)), axis.outer, axis.inner)

    return {name: tuple(plain(axis) for axis in axes[name]) for name in sorted(axes)}


@pytest.mark.parametrize("name", SAME)
def test_derived_groups_are_those_the_zoo_declares(name: str) -> None:
    entry = MODELS[name]
    model: Any = create(ModelSpec(name, entry.example_shape, entry.example_classes), seed=0)

    assert renamed(derived_axes(model, entry.example_shape)) == renamed(model.axes())


@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)
def test_groups_of_a_module(kind: type[nn.Module]) -> None:
    shape, groups = GROUPS[kind]
    module = seeded(kind)

    assert group_sizes(arrays(module), derived_axes(module, shape)) == groups


@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)
def test_cut_module_computes_what_the_zeroed_whole_does(kind: type[nn.Module]) -> None:
    shape, groups = GROUPS[kind]
    whole, small = seeded(kind), seeded(kind)
    axes = derived_axes(whole, shape)
    sizes = {group: size // 2 for group, size in groups.items()}
    plan = prefix_plan(groups, sizes)
    state = arrays(whole)
    blank = {name: np.zeros_like(value) for name, value in state.items()}
    zeroed = put(blank, take(state, axes, plan), axes, plan)
    made = torch.Generator().manual_seed(1)
    x = torch.rand(3, *shape, generator=made) if shape != WORDS else torch.randint(0, 20, (3, 7), generator=made)

    shrink(small, axes, sizes, shape)
    whole.load_state_dict({name: torch.from_numpy(value) for name, value in zeroed.items()})

    assert {name: value.shape for name, value in arrays(small).items()} == {
        name: value.shape for name, value in take(state, axes, plan).items()
    }
    with torch.no_grad():
        torch.testing.assert_close(small(x), whole(x), rtol=1e-4, atol=1e-6)


def test_deriving_leaves_the_module_as_it_was() -> None:
    module = Residual().train()
    before = {name: value.copy() for name, value in arrays(module).items()}

    derived_axes(module, IMAGE)

    assert module.training
    for name, value in arrays(module).items():
        np.testing.assert_array_equal(value, before[name])


def test_group_norm_keeps_a_divisor_of_its_groups() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1))

    shrink(module, derived_axes(module, IMAGE), {"0": 6}, IMAGE)

    norm = module[1]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels) == (2, 6)


def test_a_module_that_cannot_be_traced() -> None:
    with pytest.raises(ConfigError, match="channel groups of Branching cannot be derived"):
        derived_axes(Branching(), VECTOR)


def test_axes_that_do_not_fit_are_refused() -> None:
    wrong = {"0.weight": (Axis("a"), None), "0.bias": (Axis("a"),), "1.weight": (None, None), "1.bias": (None,)}

    with pytest.raises(ConfigError, match="Sequential cannot be cut"):
        shrink(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), wrong, {"a": 2}, VECTOR)


@pytest.fixture
def own() -> Iterator[str]:
    """A module with makers that `python:` specs can name."""
    module: Any = ModuleType("zoo_derive_test_own")
    module.residual = lambda input_shape, classes: Residual()
    module.branching = lambda input_shape, classes: Branching()
    sys.modules[module.__name__] = module
    yield f"python:{module.__name__}"
    del sys.modules[module.__name__]


def test_own_module_at_a_width(own: str) -> None:
    spec = ModelSpec(f"{own}:residual", IMAGE, 4)
    half = scaled(spec, 0.5)
    whole, small = create(spec, seed=3), create(half, seed=3)

    assert full_sizes(spec) == {"stem": 6, "inside": 5}
    assert sizes_of(half) == {"stem": 3, "inside": 2}
    part = take(arrays(whole), axes_of(spec), prefix_plan(full_sizes(spec), sizes_of(half)))
    for name, value in arrays(small).items():
        np.testing.assert_array_equal(value, part[name])


def test_own_module_that_must_stay_whole(own: str) -> None:
    spec = ModelSpec(f"{own}:branching", VECTOR, 4)

    assert scaled(spec, 1) == spec
    with pytest.raises(ConfigError, match="can only be used whole"):
        scaled(spec, 0.5)
