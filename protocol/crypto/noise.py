"""Gaussian noise that nobody can foresee: drawn from ChaCha20 under a key of the operating system.

Floats have a finite precision; what the low bits of their sums tell (Mironov, 2012) is not accounted. Whole numbers
have no such bits: see discrete_gaussian.py.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY_BYTES, NONCE_BYTES = 32, 16
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


class SecureNoise:
    """Standard normal numbers by Box and Muller; the radius has 64 random bits, so that tails reach 9.4."""

    def __init__(self, seed: bytes | None = None) -> None:
        self._bytes = SecureBytes(seed)

    def standard_normal(self, shape: tuple[int, ...]) -> Floats:
        """Independent N(0, 1) in this shape."""
        size = int(np.prod(shape, dtype=np.int64))
        pairs = (size + 1) // 2
        raw = self._bytes.take(12 * pairs)
        radius_bits: NDArray[Any] = np.frombuffer(raw, np.uint64, pairs)
        angle_bits: NDArray[Any] = np.frombuffer(raw, np.uint32, pairs, offset=8 * pairs)
        # (k + 1) / 2^64 is never 0, so that its logarithm is finite.
        uniform = (radius_bits.astype(np.float32) + np.float32(1.0)) * np.float32(2.0**-64)
        radius = np.sqrt(np.float32(-2.0) * np.log(uniform))
        angle = angle_bits.astype(np.float32) * np.float32(2.0 * np.pi * 2.0**-32)
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return both[:size].reshape(shape)
