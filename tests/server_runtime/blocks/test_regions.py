"""Views of a submodel in a whole tensor: the same sums as numpy's own indexing, whatever the index."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject

from fedwright.server_runtime.blocks.averaging import KEPT_PLANS, SelectiveMean
from fedwright.server_runtime.blocks.regions import CHUNK, Region, _blocks, scratch_for
from fedwright.server_runtime.blocks.slicing import Axis, random_plan, rolling_plan, take
from helpers.present import present

SHAPE = (12, 10, 3)


def kept(data: DataObject, length: int) -> Any:
    """A slice, or sorted distinct indices of an axis."""
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    some = sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1)))
    return data.draw(st.sampled_from([slice(None), slice(start, stop), np.array(some, np.int64)]))


@settings(deadline=None)
@given(st.data(), st.sampled_from([1.0, 0.75, 3.0]), st.booleans())
def test_the_same_as_an_outer_product_of_indices(data: DataObject, factor: float, apart: bool) -> None:
    rng = np.random.default_rng(0)
    index = tuple(kept(data, length) for length in SHAPE)
    total = rng.normal(size=SHAPE).astype(np.float32)
    expected = total.copy()
    region = Region(total, index)
    scratch = scratch_for({"w": total})
    opened = np.ix_(*(np.arange(length)[part] for part, length in zip(index, SHAPE, strict=True)))
    for _ in range(3):
        values = rng.normal(size=expected[opened].shape).astype(np.float32)
        bytes_apart = region.collect() if apart else 0
        assert bytes_apart in (0, 4 * region.size)
        region.add(values, factor, scratch)
        expected[opened] += np.float32(factor) * values
    region.settle(scratch)

    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
    assert region.size == values.size


def test_a_number_is_a_region_too() -> None:
    total = np.array(2.0, np.float32)
    Region(total, ()).add(np.array(3.0, np.float32), 0.5, scratch_for({"s": total}))
    assert total == 3.5


def test_long_tensors_are_added_in_pieces() -> None:
    total = np.zeros((3, CHUNK), np.float32)
    scratch = scratch_for({"w": total})
    Region(total, (slice(0, 2), slice(1, CHUNK))).add(np.ones((2, CHUNK - 1), np.float32), 2.0, scratch)
    assert total.sum() == 4 * (CHUNK - 1)
    assert not total[:, 0].any()


def test_a_window_that_wraps_is_four_blocks_and_a_draw_is_none() -> None:
    plan = rolling_plan({"out": 64, "in": 64}, {"out": 40, "in": 40}, 50)
    assert len(present(_blocks((plan["out"], plan["in"]), (64, 64)))) == 4
    drawn = random_plan({"out": 64}, {"out": 32}, np.random.default_rng(0))["out"]
    assert _blocks((drawn, drawn), (64, 64)) is None


@pytest.mark.parametrize("plans", [1, KEPT_PLANS + 3])
def test_sums_apart_take_no_more_than_one_model(plans: int) -> None:
    rng = np.random.default_rng(0)
    axes = {"w": (Axis("out"), Axis("in"))}
    current = {"w": np.zeros((64, 64), np.float32)}
    mean = SelectiveMean(current, axes)
    dealt = [random_plan({"out": 64, "in": 64}, {"out": 48, "in": 48}, rng) for _ in range(plans)]
    for plan in dealt * 3:
        mean.add(take({"w": np.ones((64, 64), np.float32)}, axes, plan), plan, 2.0)
        assert 0 <= mean._room <= current["w"].nbytes
    trained = np.zeros((64, 64), bool)
    for plan in dealt:
        trained[np.ix_(plan["out"], plan["in"])] = True
    np.testing.assert_allclose(mean.result()["w"], trained, rtol=1e-6)
    assert mean._room == current["w"].nbytes
