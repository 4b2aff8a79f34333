"""Scores from counts, checked by head."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol.divergence import distribution, divergence
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.scores import distances, heterogeneity
from fedwright.server_runtime.evaluate.metrics import paired


def test_smoothed_distribution() -> None:
    np.testing.assert_allclose(distribution(np.array([3, 0]), smoothing=0.5), [3.5 / 4, 0.5 / 4])


def test_divergence_of_opposites_is_log_two() -> None:
    assert divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(np.log(2))
    assert divergence(np.array([0.4, 0.6]), np.array([0.4, 0.6])) == 0.0


def test_the_device_unlike_the_others_scores_highest() -> None:
    scores = heterogeneity([np.array([50, 50]), np.array([55, 45]), np.array([0, 30])])
    assert scores.argmax() == 2


def test_equal_devices_score_zero() -> None:
    np.testing.assert_allclose(heterogeneity([np.array([2, 8])] * 3, smoothing=0.0), 0.0, atol=1e-15)


def test_distance_from_the_mean_features_by_head() -> None:
    # the mean weighted 3 to 1 is (1, 0)
    np.testing.assert_allclose(distances(np.array([[0.0, 0.0], [4.0, 0.0]]), np.array([3, 1])), [1.0, 3.0])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([np.array([], np.int64)], "one non-negative number per class"),
        ([np.array([-1, 2])], "one non-negative number per class"),
        ([np.array([1, 2]), np.array([1, 2, 3])], "different numbers of classes"),
    ],
    ids=["empty classes", "negative", "unequal"],
)
def test_wrong_counts_are_one_sentence(counts: list[NDArray[Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        heterogeneity(counts)


def test_no_samples_without_smoothing() -> None:
    with pytest.raises(ConfigError, match="no counted sample"):
        distribution(np.array([0, 0]), smoothing=0.0)


def test_paired_statistics_by_head() -> None:
    found = paired([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 1.0])
    # differences 1 1 1 3: mean 1.5, standard deviation 1, t = 1.5 / (1 / 2)
    assert (found.mean, found.wins, found.pairs) == (1.5, 4, 4)
    assert found.t == pytest.approx(3.0)
    assert found.effect == pytest.approx(1.5)
    assert found.wilcoxon_p == pytest.approx(0.125)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("a", "b", "p"), [([1.0], [0.0], 1.0), ([1, 2], [1, 2], 1.0)], ids=["one pair", "equal"])
def test_pairs_that_say_nothing(a: list[float], b: list[float], p: float) -> None:
    assert paired(a, b).t_p == p


def test_unequal_lengths_cannot_be_paired() -> None:
    with pytest.raises(ConfigError, match="cannot be paired"):
        paired([1, 2], [1])
