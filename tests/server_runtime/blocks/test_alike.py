"""Groups of devices that share a description."""

import numpy as np
import pytest

from fedwright.server_runtime.blocks.alike import groups_of, nearest


def test_those_who_are_near_each_other_are_a_group() -> None:
    rows = {name: np.asarray([x, 0.0]) for name, x in zip("abcdef", (0, 10, 1, 11, 2, 12), strict=True)}

    assert groups_of(rows, 3) == [["b", "d", "f"], ["a", "c", "e"]]


@pytest.mark.parametrize("count", range(1, 14))
def test_no_group_is_too_small_and_nobody_is_left_out(count: int) -> None:
    rng = np.random.default_rng(count)
    rows = {f"d{number}": rng.normal(size=4) for number in range(count)}

    found = groups_of(rows, 3)

    assert sorted(device for group in found for device in group) == sorted(rows)
    assert all(3 <= len(group) <= 5 for group in found) or count < 3
    assert found == groups_of(dict(reversed(rows.items())), 3)


def test_who_comes_later_takes_the_nearest() -> None:
    rows = [np.asarray([0.0]), np.asarray([4.0])]

    assert nearest(np.asarray([2.5]), rows) is rows[1]
