"""The discrete Gaussian is drawn as its formula says, and its shares add up."""

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from fedwright.protocol.crypto.discrete_gaussian import MOST_VARIANCE, DiscreteGaussian
from fedwright.protocol.errors import ConfigError


def chances(variance: int, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers around 0 and their exact chances."""
    numbers = np.arange(-reach, reach + 1)
    weights = np.exp(-(numbers.astype(float) ** 2) / (2 * variance))
    return numbers, weights / weights.sum()


@pytest.mark.parametrize("variance", [1, 5, 90])
def test_numbers_come_as_often_as_the_formula_says(variance: int) -> None:
    count = 60_000
    drawn = DiscreteGaussian(variance, bytes(range(32))).draw(count)
    numbers, exact = chances(variance, int(6 * variance**0.5) + 1)
    frequent = exact * count >= 20
    seen = np.array([(drawn == number).sum() for number in numbers[frequent]])
    wanted = exact[frequent] * count
    rest_seen, rest = count - seen.sum(), count - wanted.sum()

    assert stats.chisquare([*seen, rest_seen], [*wanted, rest]).pvalue > 0.01


def test_the_largest_variance_is_drawn_without_overflow() -> None:
    drawn = DiscreteGaussian(MOST_VARIANCE, bytes(32)).draw(20_000)

    assert drawn.std() == pytest.approx(MOST_VARIANCE**0.5, rel=0.03)
    assert np.abs(drawn).max() < 7 * MOST_VARIANCE**0.5


@pytest.mark.parametrize("variance", [0, MOST_VARIANCE + 1])
def test_a_variance_that_cannot_be_drawn_exactly_is_refused(variance: int) -> None:
    with pytest.raises(ConfigError, match="must be from 1 to"):
        DiscreteGaussian(variance)
