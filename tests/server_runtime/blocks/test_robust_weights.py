"""Which updates count, on vectors whose distances can be worked out by head."""

from typing import Any

import numpy as np
import pytest

from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.blocks.robust_weights import robust_weights
from fedwright.server_runtime.blocks.update_products import Products


def updates(*rows: list[float]) -> list[dict[str, np.ndarray]]:
    return [{"w": np.array(row, np.float32), "prototypes": np.full(2, 1e6, np.float32)} for row in rows]


def test_inner_products_leave_out_what_was_measured() -> None:
    np.testing.assert_allclose(Products.of(updates([1, 2], [3, 4])).products, [[5, 11], [11, 25]])


def test_submodels_are_compared_where_both_have_entries() -> None:
    gap = float("nan")
    far = float("inf")
    found = Products.of(updates([1, 2, gap], [3, gap, 5], [gap, gap, 1]))
    # 0 and 1 share the first entry, 1 and 2 the last, 0 and 2 none.
    np.testing.assert_allclose(found.distances(), np.array([[0, 4, far], [4, 0, 16], [far, 16, 0]]))
    np.testing.assert_allclose(found.cosines(np.eye(3))[0], [1, 1, 0])


def test_krum_finds_the_attacker_among_submodels_of_different_width() -> None:
    gap = float("nan")
    rows: list[list[float]] = [[0.1, 0.2], [0.1, gap], [0.2, 0.2], [0.2, gap], [-50, 9]]
    assert robust_weights(Combine("multi_krum", hostile_ratio=0.25), updates(*rows)) == [1, 1, 1, 1, 0]


def test_krum_takes_the_update_that_lies_amid_the_others() -> None:
    # With f = 1 of 5 each is scored by its 2 nearest: 0.1 lies between 0 and 0.3, as near as any other pair.
    found = robust_weights(Combine("krum", hostile_ratio=0.25), updates([0], [0.1], [0.3], [0.6], [-50]))
    assert found == [0, 1, 0, 0, 0]


def test_multi_krum_leaves_out_as_many_as_may_be_hostile() -> None:
    found = robust_weights(Combine("multi_krum", hostile_ratio=0.25), updates([0], [0.1], [0.3], [-50], [0.6]))
    assert found == [1, 1, 1, 0, 1]


def test_who_points_against_most_others_does_not_count() -> None:
    found = robust_weights(Combine("similarity"), updates([1, 0.1], [1, 0], [1, -0.1], [-1, 0], [0, 1]))
    assert found[3] == 0
    assert min(found[:3]) > 0.9
    assert found[4] < 0.2


def test_copies_share_one_voice() -> None:
    found = robust_weights(Combine("similarity"), updates([3, 1, 0], [3, 0, 1], [3, -1, 0], [3, 0, -1], [3, 0, -1]))
    assert found[3] == found[4] == pytest.approx(0.5)
    assert found[:3] == pytest.approx([1, 1, 1], abs=0.15)


def test_attackers_in_the_minority_do_not_count_however_alike_they_are() -> None:
    honest: list[list[float]] = [[5, 1, 0], [5, 0, 1], [5, -1, 0]]
    hostile: list[list[float]] = [[-9, 9, 0], [-9, 9, 0]]
    found = robust_weights(Combine("similarity"), updates(*honest, *hostile))
    assert found[3:] == [0, 0]
    assert min(found[:3]) > 0.9


@pytest.mark.parametrize("kind", ["mean", "median", "trimmed_mean", "norm_bound"])
def test_other_choices_do_not_weigh_whole_updates(kind: Any) -> None:
    assert robust_weights(Combine(kind), updates([1], [2], [99])) == [1, 1, 1]


def test_two_updates_have_no_majority() -> None:
    assert robust_weights(Combine("krum"), updates([1], [99])) == [1, 1]


def test_accomplices_that_keep_close_do_not_outvote_a_majority() -> None:
    # Four liars at one place; six honest ones 0.2 apart, each with five others within 1. A liar's fifth is at 3.2.
    rows = [[4.0]] * 4 + [[0.2 * place] for place in range(6)]

    found = robust_weights(Combine("majority", hostile_ratio=0.4), updates(*rows))

    assert found == [0] * 4 + [1] * 6


def test_an_outlier_is_left_out_and_who_is_merely_unlike_stays() -> None:
    # To the third nearest other it is about 1.4 for three, 1.6, 1.6, 2 and 29; two may be left out.
    rows = [[2.0, 0, 1], [2.0, 1, 0], [2.0, 0, -1], [2.0, -1, 0], [3.0, 0, 0.7], [2.0, 0.8, -0.8], [2.0, 30, 0]]

    assert robust_weights(Combine("outliers", hostile_ratio=0.4), updates(*rows)) == [1, 1, 1, 1, 1, 1, 0]
    assert robust_weights(Combine("majority", hostile_ratio=0.4), updates(*rows)).count(0) == 2


def test_who_pulls_the_other_way_is_left_out_however_short_its_change() -> None:
    unlike = np.eye(10) * 2
    rows = [[(-1.0 if n < 4 else 1.0), *(unlike[n] * (-1 if n < 4 else 1))] for n in range(10)]

    found = robust_weights(Combine("outliers", hostile_ratio=0.4), updates(*rows))

    assert found == [0] * 4 + [1] * 6


def test_no_more_are_left_out_than_may_be_hostile() -> None:
    rows: list[list[float]] = [[0.0], [0.1], [0.2], [0.3], [50], [-60], [70]]

    assert robust_weights(Combine("outliers", hostile_ratio=0.3), updates(*rows)) == [1, 1, 1, 1, 1, 0, 0]
    assert robust_weights(Combine("outliers", hostile_ratio=0.0), updates(*rows)) == [1] * 7


def test_krum_of_submodels_takes_the_nearest_and_for_what_it_lacks_the_next_that_has_more() -> None:
    gap = float("nan")
    rows: list[list[float]] = [
        [0.1, gap, gap],
        [0.11, gap, gap],
        [0.12, 0.2, gap],
        [0.1, 0.21, 0.3],
        [0.2, 0.2, 0.3],
        [-50, 9, 9],
    ]

    found = robust_weights(Combine("krum", hostile_ratio=0.25), updates(*rows))

    # Those that lie nearest come first; each further one has entries that none before it has, and counts a thousandth.
    assert sorted(found, reverse=True)[:2] == [1, pytest.approx(1e-3)]
    assert found[5] == 0
    assert any(found[place] > 0 for place in (3, 4))
    assert sum(weight > 0 for weight in found) <= 3


def test_who_lies_far_off_is_left_out_before_the_others_are_mixed() -> None:
    # Among mixes of eight alike devices the one at -2 would stand out, too, once there are mixes of two liars.
    honest = [[2.0, place] for place in (0.0, 1.0, 2.0, -1.0, 0.0, -2.0, 0.0, 2.0)]
    hostile = [[-40.0, 0.0], [-40.0, 3.0]]

    found = robust_weights(Combine("outliers", hostile_ratio=0.4, mix="neighbours"), updates(*honest, *hostile))

    assert min(found[:8]) > 0
    assert found[8:] == [0, 0]
