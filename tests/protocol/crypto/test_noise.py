"""Gaussian noise from a cipher: of the right distribution, and no two streams alike."""

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from fedwright.protocol.crypto.noise import SecureNoise


def test_numbers_are_standard_normal() -> None:
    drawn = SecureNoise(bytes(range(32))).standard_normal((200_001,))

    assert drawn.dtype == np.float32
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    # both halves of a pair: neighbours across the two are independent
    half = len(drawn) // 2
    assert abs(np.corrcoef(drawn[:half], drawn[-half:])[0, 1]) < 0.01


def test_two_streams_of_the_system_differ_and_a_stream_goes_on() -> None:
    one, other = SecureNoise(), SecureNoise()
    first = one.standard_normal((4, 5))

    assert first.shape == (4, 5)
    assert not np.array_equal(first, other.standard_normal((4, 5)))
    assert not np.array_equal(first, one.standard_normal((4, 5)))
