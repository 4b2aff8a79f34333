"""Gaussian noise that nobody can foresee: drawn from ChaCha20 under a key of the operating system.

Floats have a finite precision; what the low bits of their sums tell (Mironov, 2012) is not accounted. Whole numbers
have no such bits: see discrete_gaussian.py.
"""

import os

import numpy as np
from numpy.typing import NDArray

KEY_BYTES, NONCE_BYTES = 32, 16
# Pairs of normal numbers that are made at a time, and the random bytes of one.
PAIRS, PAIR_BYTES = 1 << 15, 8
# Whole numbers from here on have more bits than a float32 keeps.
FLOAT_BITS = np.uint32(2**24)
Floats = NDArray[np.float32]


class SecureBytes:
    """An endless stream of ChaCha20; `seed` makes it one that a test knows."""

    def __init__(self, seed: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        key = os.urandom(KEY_BYTES) if seed is None else seed
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(NONCE_BYTES)), mode=None).encryptor()

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        return self._stream.update(bytes(count))

    def take_into(self, zeros: memoryview, out: bytearray) -> None:
        """The next bytes, as many as there are zeros, to the beginning of a longer array."""
        self._stream.update_into(zeros, out)


class SecureNoise:
    """Normal numbers by Box and Muller; the radius has 64 random bits, so that tails reach 9.4.

    They are made piece by piece in the same memory: fresh pages would cost more than the numbers do.
    """

    def __init__(self, seed: bytes | None = None) -> None:
        self._bytes = SecureBytes(seed)
        self._room = _Room(0)

    def standard_normal(self, shape: tuple[int, ...]) -> Floats:
        """Independent N(0, 1) in this shape."""
        found = np.empty(shape, np.float32)
        self.fill(found, 1.0)
        return found

    def fill(self, out: Floats, scale: float) -> None:
        """Independent N(0, scale²) in the place of what is there, in an array whose numbers lie side by side."""
        flat = out.reshape(-1)
        if not np.shares_memory(flat, out) and out.size:
            raise ValueError("noise cannot be put in place into an array with gaps")
        for start in range(0, len(flat), 2 * PAIRS):
            self._fill_piece(flat[start : start + 2 * PAIRS], np.float32(-2.0 * scale * scale))

    def _fill_piece(self, out: Floats, factor: np.float32) -> None:
        pairs = (len(out) + 1) // 2
        if len(self._room.radius) < pairs:
            self._room = _Room(pairs)
        high, turn = self._room.draw(self._bytes, pairs)
        radius, angle, side = (part[:pairs] for part in (self._room.radius, self._room.angle, self._room.side))
        np.multiply(high, np.float32(2.0**-32), out=radius, dtype=np.float32, casting="unsafe")
        # Of small words more bits count than there are: (2^32 high + low + 1) / 2^64, whose logarithm is finite.
        few = np.flatnonzero(high < FLOAT_BITS)
        low = np.frombuffer(self._bytes.take(4 * len(few)), np.uint32)
        radius[few] = high[few] * 2.0**-32 + (low + 1.0) * 2.0**-64
        np.log(radius, out=radius)
        radius *= factor
        np.sqrt(radius, out=radius)
        np.multiply(turn, np.float32(2.0 * np.pi * 2.0**-32), out=angle, dtype=np.float32, casting="unsafe")
        first, second = out[:pairs], out[pairs:]
        np.multiply(np.cos(angle, out=side), radius, out=first)
        np.multiply(np.sin(angle, out=side)[: len(second)], radius[: len(second)], out=second)


class _Room:
    """Where so many pairs are made."""

    def __init__(self, pairs: int) -> None:
        self.radius, self.angle, self.side = (np.empty(pairs, np.float32) for _ in range(3))
        self._zeros = bytes(PAIR_BYTES * pairs)
        self._raw = bytearray(PAIR_BYTES * pairs + NONCE_BYTES)

    def draw(self, source: SecureBytes, pairs: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Two random words for each pair."""
        source.take_into(memoryview(self._zeros)[: PAIR_BYTES * pairs], self._raw)
        words = np.frombuffer(self._raw, np.uint32, 2 * pairs)
        return words[:pairs], words[pairs:]
