"""Noise on what a device tells: of the size asked for, never negative, nothing else changed."""

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.noise import ClassMeanNoise, with_noise
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary
from helpers.present import present

COUNTS = [100] * 5000
SUMMARY = DataSummary(5, 2, [4], 5000, class_counts=COUNTS, descriptor=[2.0] * 4000)


def test_the_noise_has_the_size_that_was_asked_for() -> None:
    told = with_noise(SUMMARY, 0.2, np.random.default_rng(0))

    assert np.std(present(told.class_counts)) == pytest.approx(20.0, rel=0.05)
    assert np.mean(present(told.class_counts)) == pytest.approx(100.0, rel=0.01)
    assert np.std(present(told.descriptor)) == pytest.approx(0.4, rel=0.05)
    assert (told.samples, told.holdout, told.input_shape) == (5, 2, [4])


def test_the_spread_of_pixels_gets_noise_and_changes_no_other_draw() -> None:
    """The same relative size as for counts; agents that told counts before still tell the same ones."""
    images = structs.replace(SUMMARY, pixel_std=0.5)
    told = [with_noise(images, 0.2, np.random.default_rng(seed)) for seed in range(300)]

    spread = [present(one.pixel_std) for one in told]
    assert np.std(spread) == pytest.approx(0.1, rel=0.15)
    assert np.mean(spread) == pytest.approx(0.5, rel=0.05)
    assert structs.replace(told[0], pixel_std=None) == with_noise(SUMMARY, 0.2, np.random.default_rng(0))
    loud = [with_noise(images, 9.0, np.random.default_rng(seed)) for seed in range(20)]
    assert min(present(one.pixel_std) for one in loud) == 0.0


def test_counts_stay_counts() -> None:
    told = with_noise(SUMMARY, 5.0, np.random.default_rng(0))

    assert min(present(told.class_counts)) == 0
    assert all(isinstance(count, int) for count in present(told.class_counts))


def test_what_is_not_told_stays_untold() -> None:
    told = with_noise(DataSummary(5, 2, [4], 3), 1.0, np.random.default_rng(0))

    assert told == DataSummary(5, 2, [4], 3)


def test_no_noise_is_the_truth_and_less_than_none_is_refused() -> None:
    assert with_noise(SUMMARY, 0.0, np.random.default_rng(0)) is SUMMARY
    with pytest.raises(ConfigError, match="0 or more"):
        with_noise(SUMMARY, -1.0, np.random.default_rng(0))


def test_prototypes_get_noise_of_the_size_that_was_asked_for_and_always_the_same() -> None:
    prototypes = np.full((3, 4000), 2.0, np.float32)
    prototypes[2] = 0.0
    class_mean_noise = ClassMeanNoise(0.2, b"0123456789abcdef", told=(40, 0, 7))

    given, counts = class_mean_noise(prototypes, np.array([50, 30, 0]))

    # Told of and there, there but not told of, told of but not there: noise of a fifth of the mean entry.
    assert counts.tolist() == [40, 0, 7]
    assert np.std(given[0]) == pytest.approx(0.4, rel=0.05)
    assert np.mean(given[0]) == pytest.approx(2.0, rel=0.02)
    assert not given[1].any()
    assert np.std(given[2]) == pytest.approx(0.4, rel=0.05)
    np.testing.assert_array_equal(class_mean_noise(prototypes, np.array([50, 30, 0]))[0], given)
    assert not np.array_equal(
        ClassMeanNoise(0.2, b"fedcba9876543210", class_mean_noise.told)(prototypes, np.array([50, 30, 0]))[0], given
    )


def test_both_descriptors_of_whole_numbers_get_noise_and_change_no_other_draw() -> None:
    whole = structs.replace(SUMMARY, number_descriptor=[3.0] * 4000, class_names=["cat", "dog"])
    told = with_noise(whole, 0.2, np.random.default_rng(0))

    assert np.std(present(told.number_descriptor)) == pytest.approx(0.6, rel=0.05)
    assert told.class_names == ["cat", "dog"]
    plain = structs.replace(told, number_descriptor=None, class_names=None)
    assert plain == with_noise(SUMMARY, 0.2, np.random.default_rng(0))


def test_noisy_prototypes_are_those_of_the_classes_that_were_told_of() -> None:
    class_mean_noise = ClassMeanNoise(0.2, b"0123456789abcdef", told=(40, 0), class_names=("cat", "fox"))

    given, counts = class_mean_noise(np.ones((3, 8), np.float32), np.array([0, 30, 50]), ["ant", "fox", "cat"])

    assert counts.tolist() == [0, 0, 40]
    assert [bool(row.any()) for row in given] == [False, False, True]
