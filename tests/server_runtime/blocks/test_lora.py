"""Adapters as tensors; pairs and their turns."""

import numpy as np
import pytest

from fedwright.server_runtime.blocks.lora import (
    adapted_matrix,
    flatten,
    head_spreads,
    merge,
    pair_up,
    take_turns,
    unflatten,
)

OWNED = {"a": [0, 1], "b": [1, 2], "c": [3], "d": [0, 3], "e": [4]}


def test_merging_adds_the_product_of_the_factors() -> None:
    weights = {
        "x.weight": np.ones((2, 3), np.float32),
        "x.bias": np.zeros(2, np.float32),
        "x.lora_down": np.array([[1.0, 2.0, 3.0]], np.float32),
        "x.lora_up": np.array([[1.0], [10.0]], np.float32),
        "y.weight": np.ones(4, np.float32),
    }
    merged = merge(weights)
    assert merged.keys() == {"x.weight", "x.bias", "y.weight"}
    assert merged["x.weight"].tolist() == [[2, 3, 4], [11, 21, 31]]


def test_a_model_that_is_one_layer_is_merged_too() -> None:
    weights = {"weight": np.zeros((1, 1)), "lora_down": np.array([[2.0]]), "lora_up": np.array([[3.0]])}
    assert merge(weights)["weight"].tolist() == [[6.0]]


def test_gates_are_merged_one_by_one() -> None:
    """Two gates of two units each over one input, rank 1: a factor of one gate does not reach the other."""
    weights = {
        "lstm.weight_ih_l0": np.zeros((4, 1), np.float32),
        "lstm.ih_l0_lora_down": np.array([[1.0], [10.0]], np.float32),
        "lstm.ih_l0_lora_up": np.array([[1.0], [2.0], [3.0], [4.0]], np.float32),
    }
    assert merge(weights)["lstm.weight_ih_l0"].ravel().tolist() == [1, 2, 30, 40]


@pytest.mark.parametrize(
    ("factor", "matrix"),
    [
        ("encoder.fc1.0.lora_down", "encoder.fc1.0.weight"),
        ("lora_up", "weight"),
        ("encoder.lstm.hh_l0_lora_up", "encoder.lstm.weight_hh_l0"),
    ],
    ids=["linear", "alone", "lstm"],
)
def test_a_factor_names_its_matrix(factor: str, matrix: str) -> None:
    assert adapted_matrix(factor) == matrix


def test_second_factors_begin_at_zero_and_first_ones_do_not() -> None:
    spreads = head_spreads(["x.lora_down", "x.lora_up", "head.bias"], 128)
    assert spreads["x.lora_up"] == spreads["head.bias"] == 0
    # a tenth of torch's uniform ±1/sqrt(128), whose deviation is that by sqrt(3)
    assert spreads["x.lora_down"] == pytest.approx(0.0051, abs=1e-4)


def test_every_device_is_in_one_pair_and_an_odd_one_is_left_over() -> None:
    pairs = pair_up(OWNED, 2, np.random.default_rng(0))
    members = [device for pair in pairs for device in set(pair.turns)]
    assert len(members) == len(set(members)) <= 4
    for pair in pairs:
        union = {label for device in set(pair.turns) for label in OWNED[device]}
        assert set(pair.classes) <= union | {label for own in OWNED.values() for label in own}
        assert all(set(OWNED[device]) & set(pair.classes) for device in pair.turns)


def test_turns_go_to_and_fro_as_often_as_there_are_exchanges() -> None:
    assert take_turns(("a", "b"), OWNED, [1], 3) == ("a", "b", "a", "b", "a", "b")


def test_a_device_without_the_drawn_classes_has_no_turn() -> None:
    assert take_turns(("a", "b"), OWNED, [2], 3) == ("b", "b", "b")


def test_a_pair_of_which_neither_has_the_drawn_classes_is_dropped() -> None:
    assert take_turns(("a", "b"), OWNED, [4], 3) == ()
    assert pair_up({"a": [], "b": []}, 3, np.random.default_rng(0)) == []


def test_half_of_an_odd_union_is_rounded_down_but_never_to_nothing() -> None:
    (pair,) = pair_up({"a": [0], "b": [0]}, 1, np.random.default_rng(0))
    assert pair.classes == (0,)
    (pair,) = pair_up({"a": [0, 1], "b": [1, 2]}, 1, np.random.default_rng(0))
    assert len(pair.classes) == 1


def test_flattening_is_undone() -> None:
    adapter = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([7.0])}
    shapes = {name: value.shape for name, value in adapter.items()}
    back = unflatten(shapes, flatten(shapes, adapter))
    assert all(np.array_equal(back[name], adapter[name]) for name in adapter)
