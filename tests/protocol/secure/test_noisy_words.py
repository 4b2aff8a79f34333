"""Changes with shares of noise: as long as they may be, unbiased, and as noisy in sum as is accounted for."""

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.secure.noisy_words import NoisyScale, counted_on, noisy_scale, noisy_words
from fedwright.server_runtime.rounds.privacy.accounting import distributed_multiplier


def seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.mark.parametrize(("members", "counted"), [(3, 3), (4, 2), (10, 4), (33, 13), (1000, 334)])
def test_shares_are_counted_on_though_a_third_leaves_and_a_third_tells_theirs(members: int, counted: int) -> None:
    assert counted_on(members) == counted


@pytest.mark.parametrize("members", [3, 10, 100, 1000])
@pytest.mark.parametrize("multiplier", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("entries", [1, 5_000])
def test_the_shares_that_are_counted_on_are_worth_what_is_accounted(
    members: int, multiplier: float, entries: int
) -> None:
    made = noisy_scale(members, entries, clip=0.5, multiplier=multiplier)

    worth = distributed_multiplier(made.variance, counted_on(members), sensitivity=made.bound, entries=entries)
    assert worth == pytest.approx(multiplier, rel=1e-3)
    assert worth >= multiplier * (1 - 1e-12)


def rounded(change: np.ndarray, scale: NoisyScale, number: int) -> np.ndarray:
    """The whole numbers without their noise, which is the same for nothing at all."""
    quiet = noisy_words(np.zeros_like(change), scale, clip=1.0, seed=seed(number)).view(np.int32)
    return noisy_words(change, scale, clip=1.0, seed=seed(number)).view(np.int32) - quiet


@pytest.mark.parametrize("length", [1.0, 1e6])
def test_no_row_is_longer_than_what_its_noise_hides(length: float) -> None:
    change = np.random.default_rng(0).normal(size=2_000).astype(np.float32)
    change *= np.float32(length / np.linalg.norm(change))
    free = [float(np.linalg.norm(rounded(change, NoisyScale(40.0, np.inf, 1), number))) for number in range(12)]
    # Half of all first draws are too long for this, and are drawn again.
    tight = NoisyScale(40.0, float(np.median(free)), 1)

    rows = [rounded(change, tight, number) for number in range(12)]
    assert max(free) > tight.bound
    assert max(float(np.linalg.norm(row)) for row in rows) <= tight.bound
    np.testing.assert_array_equal(rows[3], rounded(change, tight, 3))


def test_a_change_shorter_than_the_clip_keeps_its_length() -> None:
    change = np.full(4, 0.25, np.float32)
    row = rounded(change, NoisyScale(4000.0, np.inf, 1), 1)

    np.testing.assert_allclose(row, 1000, atol=1)


def test_many_shares_add_up_to_the_clipped_changes() -> None:
    change = np.asarray([3.0, 4.0, 0.0, 1e-5], np.float32)
    made = noisy_scale(3, 4, clip=2.5, multiplier=0.01)
    total = sum(noisy_words(change, made, clip=2.5, seed=seed(n)).view(np.int32).astype(float) for n in range(400))

    mean = np.asarray(total) / 400 / made.scale
    assert made.variance**0.5 / made.scale < 0.02
    np.testing.assert_allclose(mean, [1.5, 2.0, 0.0, 0.0], atol=4 * 0.02 / 20)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_a_change_that_is_not_finite_goes_in_as_noise_alone(bad: float) -> None:
    made = noisy_scale(5, 3, clip=1.0, multiplier=1.0)
    nothing = noisy_words(np.zeros(3, np.float32), made, clip=1.0, seed=seed(3))

    found = noisy_words(np.asarray([bad, 0, 0], np.float32), made, clip=1.0, seed=seed(3))
    if np.isfinite(bad):
        assert not np.array_equal(found, nothing)
    else:
        np.testing.assert_array_equal(found, nothing)


def test_noise_that_leaves_nothing_of_a_change_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves nothing of a change in a sum of 3 devices"):
        noisy_scale(3, 10_000_000, clip=1.0, multiplier=100.0)
