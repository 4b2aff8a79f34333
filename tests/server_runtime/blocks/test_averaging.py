"""Averages over unequal parts, with numbers that can be checked by head."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.averaging import DilutedMean, SelectiveMean
from fedwright.server_runtime.blocks.slicing import Axis, put, random_plan, take

AXES = {"w": (Axis("out"), Axis("in", inner=2)), "b": (Axis("out"),), "scale": (), "steps": ()}
FULL = {"out": 4, "in": 3}


def whole(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "w": rng.normal(size=(4, 6)).astype(np.float32),
        "b": rng.normal(size=4).astype(np.float32),
        "scale": np.array(rng.normal(), np.float32),
        "steps": np.array(3, np.int64),
    }


def selective_mean(current: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray, float]]) -> np.ndarray:
    """The formula; parts: (values, mask, weight) per device, mask is 1 where the device trained the entry."""
    total = np.sum([weight * mask * values for values, mask, weight in parts], axis=0)
    weights = np.sum([weight * mask for _, mask, weight in parts], axis=0)
    return np.where(weights > 0, total / np.where(weights > 0, weights, 1), current)


def test_untrained_entries_keep_their_value() -> None:
    current = np.array([1.0, 2.0, 3.0])
    narrow = (np.array([5.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]), 1.0)
    wide = (np.array([9.0, 8.0, 0.0]), np.array([1.0, 1.0, 0.0]), 3.0)

    # entry 0: (1*5 + 3*9) / 4 = 8; entry 1: only the wide device; entry 2: nobody
    np.testing.assert_allclose(selective_mean(current, [narrow, wide]), [8.0, 8.0, 3.0])


def test_streamed_prefixes_by_head() -> None:
    mean = SelectiveMean({"b": np.array([1, 2, 3], np.float32)}, {"b": (Axis("out"),)})

    mean.add({"b": np.array([5], np.float32)}, {"out": np.array([0])}, 1.0)
    mean.add({"b": np.array([9, 8], np.float32)}, {"out": np.array([0, 1])}, 3.0)

    np.testing.assert_allclose(mean.result()["b"], [8, 8, 3])


def test_diluted_mean_pulls_untrained_entries_back() -> None:
    mean = DilutedMean({"b": np.array([1, 2, 3], np.float32)}, {"b": (Axis("out"),)})

    mean.add({"b": np.array([5], np.float32)}, {"out": np.array([0])}, 1.0)
    mean.add({"b": np.array([9, 8], np.float32)}, {"out": np.array([0, 1])}, 3.0)

    # entry 0: (5 + 27) / 4 = 8; entry 1: (1*2 + 3*8) / 4 = 6.5; entry 2: nobody
    np.testing.assert_allclose(mean.result()["b"], [8, 6.5, 3])


@given(seed=st.integers(0, 2**32 - 1), devices=st.integers(1, 5))
def test_streamed_equals_the_formula(seed: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    current = whole(rng)
    streamed = SelectiveMean(current, AXES)
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, float]]] = {"w": [], "b": [], "scale": []}
    zeros = {name: np.zeros_like(tensor) for name, tensor in current.items()}

    for _ in range(devices):
        plan = random_plan(FULL, {"out": int(rng.integers(1, 5)), "in": int(rng.integers(1, 4))}, rng)
        weight = float(rng.integers(1, 50))
        sent = take(whole(rng), AXES, plan)
        streamed.add(sent, plan, weight)
        values = put(zeros, sent, AXES, plan)
        ones = put(zeros, {name: np.ones_like(tensor) for name, tensor in sent.items()}, AXES, plan)
        for name, row in parts.items():
            row.append((values[name], ones[name], weight))

    for name, row in parts.items():
        np.testing.assert_allclose(streamed.result()[name], selective_mean(current[name], row), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [SelectiveMean, DilutedMean])
def test_echoed_weights_change_nothing(kind: type[SelectiveMean] | type[DilutedMean]) -> None:
    rng = np.random.default_rng(3)
    current = whole(rng)
    mean = kind(current, AXES)

    for weight in (141.0, 13215.0, 7.0):
        plan = random_plan(FULL, {"out": 3, "in": 2}, rng)
        mean.add(take(current, AXES, plan), plan, weight)

    for name, tensor in mean.result().items():
        np.testing.assert_allclose(tensor, current[name], rtol=3e-7)
        assert tensor.dtype == current[name].dtype


def test_one_device_gives_back_exactly_its_values() -> None:
    rng = np.random.default_rng(6)
    mean = SelectiveMean(whole(rng), AXES)
    sent = whole(rng)

    mean.add(sent, {}, 141.0)

    for name, tensor in mean.result().items():
        np.testing.assert_array_equal(tensor, sent[name])


def test_equal_plans_make_both_protocols_the_weighted_mean() -> None:
    rng = np.random.default_rng(4)
    current = whole(rng)
    selective, diluted = SelectiveMean(current, AXES), DilutedMean(current, AXES)
    sent = [whole(rng) for _ in range(3)]

    for tensors, weight in zip(sent, (1.0, 2.0, 5.0), strict=True):
        selective.add(tensors, {}, weight)
        diluted.add(tensors, {}, weight)

    expected = (sent[0]["w"] + 2 * sent[1]["w"] + 5 * sent[2]["w"]) / 8
    np.testing.assert_allclose(selective.result()["w"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(diluted.result()["w"], expected, rtol=1e-5, atol=1e-6)


def test_integers_keep_the_largest() -> None:
    mean = SelectiveMean({"steps": np.array(3)}, {"steps": ()})

    mean.add({"steps": np.array(9)}, {}, 1.0)
    mean.add({"steps": np.array(5)}, {}, 1.0)

    assert mean.result()["steps"] == 9


def test_large_tensors_are_walked_in_pieces() -> None:
    rng = np.random.default_rng(5)
    current = {"w": np.zeros((300, 400), np.float32)}
    axes = {"w": (Axis("out"), Axis("in"))}
    full = rng.normal(size=(300, 400)).astype(np.float32)
    corner = rng.normal(size=(200, 300)).astype(np.float32)
    mean = SelectiveMean(current, axes)

    mean.add({"w": full}, {}, 1.0)
    mean.add({"w": corner}, {"out": np.arange(200), "in": np.arange(300)}, 3.0)

    expected = full.copy()
    expected[:200, :300] = (full[:200, :300] + 3 * corner) / 4
    np.testing.assert_allclose(mean.result()["w"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_weight(weight: float) -> None:
    mean = SelectiveMean({"b": np.zeros(1, np.float32)}, {"b": (None,)})

    with pytest.raises(ConfigError, match="weight"):
        mean.add({"b": np.zeros(1, np.float32)}, {}, weight)
