"""Gaussian noise from a cipher: of the right distribution, and no two streams alike."""

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from fedwright.protocol.crypto import noise
from fedwright.protocol.crypto.noise import SecureBytes, SecureNoise


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


def test_pieces_of_an_array_are_filled_in_place_with_unlike_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "PAIRS", 50)
    drawn = np.full((3, 101), 7.0, np.float32)
    SecureNoise(bytes(range(32))).fill(drawn, 3.0)

    assert len(np.unique(drawn)) == drawn.size
    assert stats.kstest(drawn.reshape(-1) / 3.0, "norm").pvalue > 0.01
    with pytest.raises(ValueError, match="array with gaps"):
        SecureNoise().fill(drawn[:, ::2], 1.0)


def test_the_smallest_words_give_tails_and_no_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SecureNoise()
    monkeypatch.setattr(source, "_bytes", _Zeros())

    # words of nothing but zeros: an angle of 0, and the largest radius there is
    assert source.standard_normal((2,)).tolist() == pytest.approx([(128 * np.log(2)) ** 0.5, 0.0])


class _Zeros(SecureBytes):
    def take(self, count: int) -> bytes:
        return bytes(count)

    def take_into(self, zeros: memoryview, out: bytearray) -> None:
        out[: len(zeros)] = bytes(len(zeros))
