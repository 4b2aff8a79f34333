"""Models by name: counts from the papers and libraries, adapters, own modules, bad input."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import adapter_names, create, scaled


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 11_689_512),
        ("mobilenet-v1", 4_231_976),
        ("mobilenet-v2", 3_504_872),
        ("mobilenet-v3", 2_542_856),
    ],
)
def test_published_parameter_counts_at_224_pixels(name: str, count: int) -> None:
    assert parameters(create(ModelSpec(name, (3, 224, 224), 1000), seed=0)) == count


@pytest.mark.parametrize(("hidden", "count"), [(256, 1_718_509), (128, 1_015_405)])
def test_lstm_follows_the_papers_cost_model(hidden: int, count: int) -> None:
    spec = ModelSpec("lstm-lm", (23,), 3437, (("hidden", hidden),))

    assert parameters(create(spec, seed=0)) == count
    assert count == 3437 * 128 + 4 * hidden * (128 + hidden) + 8 * hidden + hidden * 3437 + 3437


@pytest.mark.parametrize(("name", "count"), [("lenet-lora", 850), ("vit-lora", 2122)])
def test_adapters_of_rank_one(name: str, count: int) -> None:
    model = create(ModelSpec(name, (3, 32, 32), 10, (("rank", 1),)), seed=0)
    named = dict(model.named_parameters())

    assert sum(named[key].numel() for key in adapter_names(model)) == count


@pytest.mark.parametrize(
    ("base", "adapted"), [("lenet-valid", "lenet-lora"), ("vit-tiny", "vit-lora")], ids=["lenet", "vit"]
)
def test_fresh_adapters_change_nothing(base: str, adapted: str) -> None:
    plain = create(ModelSpec(base, (3, 32, 32), 10), seed=0)
    lora = create(ModelSpec(adapted, (3, 32, 32), 10), seed=1)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    missing, unexpected = lora.load_state_dict(plain.state_dict(), strict=False)

    assert tuple(missing) == adapter_names(lora)
    assert not unexpected
    torch.testing.assert_close(lora(x), plain(x))


def test_scaled_down_model_has_the_floor_of_each_group() -> None:
    assert scaled(ModelSpec("lenet", (1, 28, 28), 10), 0.3).sizes == (("conv1", 4), ("conv2", 9), ("fc1", 38))


def test_unknown_model_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'lenett'; choose one of cnn-exits.*vit-tiny"):
        create(ModelSpec("lenett", (1, 28, 28), 10), seed=0)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet", (28, 28)),
        ("lenet", (1, 4, 4)),
        ("lstm-lm", (23, 5)),
        ("cnn-motion", (128,)),
        ("vit-tiny", (3, 30, 32)),
        ("gcn4", (3, 32, 32)),
    ],
)
def test_input_of_the_wrong_shape(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=name):
        create(ModelSpec(name, shape, 10), seed=0)


@pytest.mark.parametrize(
    ("sizes", "words"), [((("conv9", 4),), "no channel group 'conv9'"), ((("conv1", 17),), "choose 1 to 16")]
)
def test_impossible_sizes(sizes: tuple[tuple[str, int], ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(ModelSpec("lenet", (1, 28, 28), 10, sizes), seed=0)


def test_no_classes() -> None:
    with pytest.raises(ConfigError, match="0 classes"):
        create(ModelSpec("lenet", (1, 28, 28), 0), seed=0)


def make_linear(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(input_shape[0], classes)


def make_list(*, input_shape: tuple[int, ...], classes: int) -> list[int]:
    return [*input_shape, classes]


def make_narrow(*, classes: int) -> nn.Module:
    return nn.Linear(1, classes)


@pytest.fixture
def own() -> Iterator[str]:
    """A module that can be imported, with three makers in it."""
    module: Any = ModuleType("zoo_test_own")
    module.make_linear, module.make_list, module.make_narrow = make_linear, make_list, make_narrow
    module.number = 3
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


def test_own_module_is_built_from_the_seed(own: str) -> None:
    spec = ModelSpec(f"python:{own}:make_linear", (4,), 3)

    one, same = create(spec, seed=1), create(spec, seed=1)

    assert one(torch.zeros(2, 4)).shape == (2, 3)
    assert torch.equal(one.state_dict()["weight"], same.state_dict()["weight"])


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("", "must look like python:module:name"),
        (":", "must look like python:module:name"),
        (":absent", "has no 'absent'"),
        (":number", "must name a function"),
        (":make_list", "returned a list"),
        (":make_narrow", "must take input_shape and classes"),
    ],
)
def test_own_module_that_cannot_be(own: str, tail: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(ModelSpec(f"python:{own}{tail}", (4,), 3), seed=0)


def test_own_module_has_no_groups_to_choose(own: str) -> None:
    with pytest.raises(ConfigError, match="can only be used whole"):
        create(ModelSpec(f"python:{own}:make_linear", (4,), 3, (("c", 1),)), seed=0)


def test_package_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="there is no module 'no_such_package' in this folder"):
        create(ModelSpec("python:no_such_package:make", (4,), 3), seed=0)
