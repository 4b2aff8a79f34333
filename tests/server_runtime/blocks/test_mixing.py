"""Updates that are mixed before a rule looks at them, on numbers that can be worked out by head."""

from typing import Any

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.mixing import mixed_distances, mixed_rows, mixing
from fedwright.server_runtime.blocks.robust import Combine, RobustMean, mean_by_entry
from fedwright.server_runtime.blocks.robust_weights import clipped_weights, robust_weights
from fedwright.server_runtime.blocks.slicing import Axis

GAP = float("nan")


def squared(*places: float) -> Any:
    """Squared distances of points on a line."""
    line = np.array(places, float)
    return np.square(line[:, None] - line[None, :])


def test_each_is_mixed_with_its_nearest() -> None:
    shares = mixing("neighbours", squared(0, 1, 3, 50), hostile=1)

    third = 1 / 3
    np.testing.assert_allclose(shares, [[third, third, third, 0]] * 3 + [[0, third, third, third]])


def test_buckets_are_drawn_by_the_updates_and_hold_everybody_once() -> None:
    distances = squared(*range(9))
    shares = mixing("buckets", distances, hostile=2)

    assert sorted(np.count_nonzero(shares, axis=1)) == [1, 2, 2, 2, 2]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert np.count_nonzero(shares, axis=0).tolist() == [1] * 9
    np.testing.assert_array_equal(shares, mixing("buckets", distances, hostile=2))
    assert not np.array_equal(shares, mixing("buckets", 2 * distances, hostile=2))


@pytest.mark.parametrize("mix", ["none", "buckets"])
def test_where_nobody_lies_nothing_is_mixed(mix: Any) -> None:
    np.testing.assert_array_equal(mixing(mix, squared(0, 1, 2), hostile=0), np.eye(3))


def test_distances_of_mixed_updates_follow_from_those_of_the_updates() -> None:
    rows = np.random.default_rng(1).normal(size=(6, 20))
    distances = np.square(rows[:, None] - rows[None, :]).sum(axis=2)
    shares = mixing("neighbours", distances, hostile=2)
    mixed = shares @ rows

    expected = np.square(mixed[:, None] - mixed[None, :]).sum(axis=2)
    np.testing.assert_allclose(mixed_distances(distances, shares), expected, atol=1e-9)


def test_those_that_share_nothing_are_as_far_apart_as_the_farthest() -> None:
    distances = np.array([[0, 4, np.inf], [4, 0, 1], [np.inf, 1, 0]])

    assert mixed_distances(distances, np.eye(3))[0, 2] == 4


def test_entries_are_mixed_over_those_that_have_them() -> None:
    rows = np.array([[2.0, GAP, GAP], [4.0, 6.0, GAP]])

    np.testing.assert_array_equal(mixed_rows(rows, np.full((1, 2), 0.5)), [[3.0, 6.0, GAP]])


def test_a_weighed_mix_counts_as_its_parts_do() -> None:
    rows = [{"w": np.array([value], np.float32)} for value in (0.0, 0.1, 0.2, 9.0)]
    found = robust_weights(Combine("krum", hostile_ratio=0.25, mix="neighbours"), rows)

    # The mix that is chosen holds the three that lie together, each to the same part.
    assert found == [1, 1, 1, 0]


def test_centred_clipping_draws_in_who_lies_far_off() -> None:
    weights = clipped_weights(squared(0, 1, 2, 100))

    assert weights.sum() == pytest.approx(1)
    assert weights[3] < 0.02
    assert weights @ [0, 1, 2, 100] < 3


def test_the_median_of_mixed_submodels_is_nearer_to_what_most_sent() -> None:
    current = {"w": np.zeros(2, np.float32)}
    plain, mixed = (
        RobustMean(current, {"w": (Axis("g"),)}, Combine("median", hostile_ratio=0.25, mix=mix))
        for mix in ("none", "neighbours")
    )
    for mean in (plain, mixed):
        for values, plan in (([1, 4], [0, 1]), ([3], [0]), ([2, 8], [0, 1]), ([90, 90], [0, 1])):
            mean.add({"w": np.array(values, np.float32)}, {"g": np.array(plan)}, 1.0)

    # Mixes of the first entry: 2, 2, 2 and one that holds 90; of the second 6, 6, 6 and one with 90.
    np.testing.assert_allclose(plain.result()["w"], [2.5, 8])
    np.testing.assert_allclose(mixed.result()["w"], [2, 6])


def test_rows_of_other_methods_are_mixed_too() -> None:
    rows = [np.array([value], np.float32) for value in (1, 2, 6, 90)]

    assert mean_by_entry(rows, Combine("median", hostile_ratio=0.25, mix="neighbours"))[0] == pytest.approx(3)


def test_a_mean_cannot_be_mixed() -> None:
    with pytest.raises(
        ConfigError, match="but combine is 'mean', which looks at each update alone; set combine to one of multi_krum"
    ):
        Combine("mean", mix="neighbours")
