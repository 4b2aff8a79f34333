"""Masks and channels within a budget; models without their dead channels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.masking import live_plan, top_channels, top_entries, top_entries_by_layer
from fedwright.server_runtime.blocks.slicing import Axis, take
from fedwright.server_runtime.spec import ModelSpec

WEIGHTS = {
    "a": np.array([[9.0, -8.0], [0.1, 0.2]], np.float32),
    "b": np.array([0.5, -7.0, 0.3, 0.4], np.float32),
    "c": np.array([1e-3, 1e-4], np.float32),
}


def test_the_largest_entries_of_all_tensors_together_and_one_of_each() -> None:
    # floor(0.45 * 10) = 4: 9 and -7 and 0.001 are the largest of their tensors, then -8
    masks = top_entries(WEIGHTS, WEIGHTS, 0.45)
    assert masks["a"].tolist() == [[True, True], [False, False]]
    assert masks["b"].tolist() == [False, True, False, False]
    assert masks["c"].tolist() == [True, False]


@pytest.mark.parametrize("least", [0.0, 0.5, 1.0])
def test_what_every_tensor_keeps_is_within_the_budget(least: float) -> None:
    """A tensor of tiny entries keeps its part, and the sum is as asked for however unlike the sizes are."""
    weights = {"wide": np.full(1000, 1e-3, np.float32), **{f"narrow{n}": np.ones(7, np.float32) for n in range(9)}}
    masks = top_entries(weights, weights, 0.02, least=least)
    assert sum(int(mask.sum()) for mask in masks.values()) == int(0.02 * 1063)
    # one each, and of the other 11 that part of what its size asks for
    assert masks["wide"].sum() == 1 + int(least * 11 * 1000 / 1063)


def test_ties_do_not_break_the_budget() -> None:
    same = {"a": np.ones((10, 10), np.float32), "b": np.ones(50, np.float32)}
    assert sum(int(mask.sum()) for mask in top_entries(same, same, 0.1).values()) == 15


def test_by_layer_every_tensor_has_its_share() -> None:
    masks = top_entries_by_layer(WEIGHTS, WEIGHTS, 0.5)
    assert [int(mask.sum()) for mask in masks.values()] == [2, 2, 1]
    assert masks["b"].tolist() == [True, True, False, False]


@pytest.mark.parametrize("choose", [top_entries, top_entries_by_layer], ids=["global", "by layer"])
def test_a_budget_below_one_value_per_tensor_is_refused(choose: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="leaves 2 of 10 values for 3 tensors"):
        choose(WEIGHTS, WEIGHTS, 0.25)


def test_a_share_of_one_keeps_everything() -> None:
    assert all(mask.all() for mask in top_entries(WEIGHTS, WEIGHTS, 1.0).values())


def test_the_strongest_channels_are_kept() -> None:
    weights = {"w": np.diag([1.0, 4.0, 2.0, 3.0]).astype(np.float32), "v": np.zeros((2, 4), np.float32)}
    axes = {"w": (Axis("g"), None), "v": (None, Axis("g"))}
    assert top_channels(weights, axes, 0.25)["g"].tolist() == [1, 3]
    assert top_channels(weights, axes, 0.25, whole=("g",))["g"].tolist() == [0, 1, 2, 3]


def test_without_dead_channels_the_model_computes_the_same() -> None:
    spec = ModelSpec("cnn-small", (1, 8, 8), 4)
    model = zoo.create(spec, seed=0)
    weights = initial_weights(model)
    axes = zoo.axes_of(spec)
    weights["head.weight"][:, 5:] = 0  # nobody reads fc1 from the sixth on
    weights["encoder.conv1.0.weight"][3] = 0  # nothing makes this one
    weights["encoder.conv1.0.bias"][3] = 0
    weights["encoder.conv2.0.weight"][:, 7] = 0  # nor reads that one
    plan = live_plan(weights, axes)
    small = take(weights, axes, plan)
    sizes = tuple(sorted((group, len(kept)) for group, kept in plan.items()))
    assert dict(sizes) == {"conv1": 14, "conv2": 32, "fc1": 5}

    cut = zoo.create(ModelSpec(spec.model, spec.input_shape, spec.classes, sizes), seed=1)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    cut.load_state_dict({name: torch.from_numpy(value) for name, value in small.items()})
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cut(x), model(x), atol=1e-6, rtol=1e-5)


def test_what_only_dead_channels_read_is_dead_too() -> None:
    axes = {
        "1": (Axis("a"), None),
        "2": (Axis("b"), Axis("a")),
        "3": (None, Axis("b")),
    }
    weights = {"1": np.ones((2, 3)), "2": np.array([[1.0, 0.0], [0.0, 1.0]]), "3": np.array([[1.0, 0.0]])}
    assert {group: kept.tolist() for group, kept in live_plan(weights, axes).items()} == {"a": [0], "b": [0]}
    assert live_plan(weights, axes, fixed=("b",))["a"].tolist() == [0, 1]
