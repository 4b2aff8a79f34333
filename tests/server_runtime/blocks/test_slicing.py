"""Slices along channel groups: what is taken, what comes back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import (
    Axis,
    Joined,
    entries,
    group_size,
    group_sizes,
    prefix_plan,
    put,
    random_plan,
    rolling_plan,
    take,
)
from helpers.present import present


def test_flattened_map_keeps_whole_channels() -> None:
    kept = entries(Axis("c", inner=4), 12, {"c": np.array([0, 2])})

    assert present(kept).tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_lstm_gates_keep_the_same_units_in_each_gate() -> None:
    kept = entries(Axis("hidden", outer=4), 12, {"hidden": np.array([0, 2])})

    assert present(kept).tolist() == [0, 2, 3, 5, 6, 8, 9, 11]


def test_joined_axis_counts_on() -> None:
    axis = Joined(((Axis("a"), 3), (None, 2), (Axis("b"), 4)))

    kept = entries(axis, 9, {"a": np.array([2]), "b": np.array([0, 3])})

    assert present(kept).tolist() == [2, 3, 4, 5, 8]


def test_group_not_in_the_plan_is_kept_whole() -> None:
    assert entries(Axis("c"), 3, {}) is None


def test_take_a_convolution() -> None:
    weight = np.arange(2 * 3 * 2 * 2).reshape(2, 3, 2, 2)

    part = take(
        {"w": weight}, {"w": (Axis("out"), Axis("in"), None, None)}, {"out": np.array([1]), "in": np.array([0, 2])}
    )

    np.testing.assert_array_equal(part["w"], weight[1:2][:, [0, 2]])


def test_taken_tensors_are_copies() -> None:
    weight = np.zeros(3)

    take({"w": weight}, {"w": (Axis("c"),)}, {"c": np.array([0, 1])})["w"][:] = 1

    assert not weight.any()


@given(seed=st.integers(0, 2**32 - 1))
def test_put_back_is_the_identity_on_what_was_taken(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = {"w": rng.normal(size=(8, 10)), "u": rng.normal(size=(5,))}
    axes = {"w": (Axis("h", outer=4), Axis("c", inner=2)), "u": (Axis("c"),)}
    plan = random_plan({"h": 2, "c": 5}, {"h": int(rng.integers(1, 3)), "c": int(rng.integers(1, 6))}, rng)

    part = take(tensors, axes, plan)
    merged = put({name: np.zeros_like(tensor) for name, tensor in tensors.items()}, part, axes, plan)

    for name in tensors:
        np.testing.assert_array_equal(take(merged, axes, plan)[name], part[name])
        assert np.count_nonzero(merged[name]) == part[name].size
        np.testing.assert_array_equal(put(tensors, part, axes, plan)[name], tensors[name])


def test_rolling_window_wraps() -> None:
    assert rolling_plan({"c": 5}, {"c": 3}, 4)["c"].tolist() == [0, 1, 4]


def test_rolling_window_covers_everything_after_as_many_rounds_as_channels() -> None:
    seen = {channel for round_ in range(5) for channel in rolling_plan({"c": 5}, {"c": 1}, round_)["c"].tolist()}

    assert seen == set(range(5))


def test_prefix() -> None:
    assert prefix_plan({"c": 5}, {"c": 2})["c"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("full", "width", "rounding", "size"),
    [(10, 0.7, "floor", 7), (10, 0.7, "ceil", 7), (6, 0.25, "floor", 1), (6, 0.25, "ceil", 2), (3, 0.01, "floor", 1)],
)
def test_group_size(full: int, width: float, rounding: Any, size: int) -> None:
    assert group_size(full, width, rounding) == size


@pytest.mark.parametrize("width", [0, -0.5, 1.01, float("nan")])
def test_impossible_width(width: float) -> None:
    with pytest.raises(ConfigError, match="width"):
        group_size(8, width)


@pytest.mark.parametrize(("sizes", "words"), [({"c": 6}, "size 6"), ({"c": 0}, "size 0"), ({"x": 1}, "no channel")])
def test_impossible_plan(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prefix_plan({"c": 5}, sizes)


def test_axes_that_disagree_are_named() -> None:
    tensors = {"a": np.zeros(4), "b": np.zeros(6)}

    with pytest.raises(ConfigError, match="axis 0 of b"):
        group_sizes(tensors, {"a": (Axis("c"),), "b": (Axis("c"),)})


def test_group_sizes_are_read_off_tensors() -> None:
    tensors = {"w": np.zeros((8, 7))}

    found = group_sizes(tensors, {"w": (Axis("h", outer=4), Joined(((Axis("a"), 3), (Axis("b", inner=2), 4))))})

    assert found == {"h": 2, "a": 3, "b": 2}
