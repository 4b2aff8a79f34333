"""Robust averages on numbers that can be checked by head."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.averaging import SelectiveMean
from fedwright.server_runtime.blocks.robust import Combine, make_mean
from fedwright.server_runtime.blocks.slicing import Axis

CURRENT = {"w": np.array([7.0, 7.0, 7.0], np.float32)}
AXES = {"w": (Axis("c"),)}
MEDIAN = Combine("median")


def combined(combine: Combine, *devices: tuple[Sequence[float], list[int]]) -> list[float]:
    mean = make_mean(combine, CURRENT, AXES)
    for values, kept in devices:
        mean.add({"w": np.array(values, np.float32)}, {"c": np.array(kept)}, 1.0)
    answer: list[float] = mean.result()["w"].tolist()
    return answer


def test_the_median_ignores_a_device_gone_mad() -> None:
    whole = [0, 1, 2]
    assert combined(MEDIAN, ([1, 1, 1], whole), ([2, 2, 2], whole), ([1e9, -1e9, 3], whole)) == [2, 1, 2]


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert combined(MEDIAN, *[([value], [0]) for value in (1, 2, 4, 100)])[0] == 3


def test_entries_are_compared_only_among_the_devices_that_trained_them() -> None:
    # entry 0: 1, 3, 5 -> 3; entry 1: only 9; entry 2: nobody.
    assert combined(MEDIAN, ([1, 9], [0, 1]), ([3], [0]), ([5], [0])) == [3, 9, 7]


def test_the_trimmed_mean_leaves_out_the_ends() -> None:
    # A quarter of four is one at each end: (2 + 4) / 2.
    trimmed = Combine("trimmed_mean", trim_ratio=0.25)
    assert combined(trimmed, *[([value], [0]) for value in (-1000, 2, 4, 1000)])[0] == 3


def test_a_trimmed_mean_that_trims_nothing_is_the_mean() -> None:
    assert combined(Combine("trimmed_mean", trim_ratio=0.0), ([1], [0]), ([3], [0]), ([8], [0]))[0] == 4


def test_the_plain_mean_stays_the_streaming_one() -> None:
    assert isinstance(make_mean(Combine(), CURRENT, AXES), SelectiveMean)


def test_large_tensors_are_done_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwright.server_runtime.blocks.robust.PIECE", 4)
    current = {"w": np.zeros((5, 3), np.float32)}
    mean = make_mean(MEDIAN, current, {"w": (None, None)})
    for value in (1.0, 2.0, 6.0):
        mean.add({"w": np.full((5, 3), value, np.float32)}, {}, 1.0)
    np.testing.assert_array_equal(mean.result()["w"], np.full((5, 3), 2.0))


@pytest.mark.parametrize("ratio", [-0.1, 0.5, 2.0])
def test_an_impossible_trim_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="trim_ratio"):
        Combine("trimmed_mean", trim_ratio=ratio)
