"""What `bench soak` calls growth: the rise of a line through all that comes after the warm-up."""

import math

import pytest

from fedwright.benchmarks.suites.soak import growth


def test_what_a_process_takes_while_it_warms_up_is_no_growth() -> None:
    found = [(number, 100.0 if number < 10 else 150.0) for number in range(1, 31)]

    assert growth(found, 30) == pytest.approx(0.0, abs=1e-9)


def test_a_leak_is_the_sum_of_what_every_round_leaves() -> None:
    found = [(number, 100.0 + 0.5 * number) for number in range(1, 31)]

    assert growth(found, 30) == pytest.approx(0.5 * 19)


def test_a_run_that_never_got_warm_has_no_growth_to_speak_of() -> None:
    assert math.isnan(growth([(1, 100.0)], 30))
