"""Numbers that add up modulo 2^32, and streams that hide them until those who made them open them.

A change Δ of a device that counts for w of at most W goes into a sum of n devices as whole numbers

    q = round(scale · Δ · w / W),  scale = 2^30 / (n · range),  |Δ| <= range

so that the sum of all stays within ±2^30 and is read back exactly; numbers beyond that come of a wrong mask. Each
device's rounding moves the mean Σ w Δ / Σ w by at most W / (2 scale Σ w) = n · range · W / (2^31 Σ w).
"""

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import DeviceError, ProtocolError

Words = NDArray[np.uint32]
MOST_SUM = 2**30
WORD_BYTES = 4
# Words of a stream that are made at a time, so that masks of a large model take little memory.
PIECE = 1 << 18


def scale_of(devices: int, reach: float) -> float:
    """Whole numbers for a change of 1; reach: the largest entry of a change."""
    return MOST_SUM / (devices * reach)


def whole_reach(devices: int) -> float:
    """The reach with which whole numbers are added up as they are."""
    return MOST_SUM / devices


def check_reach(change: NDArray[np.float32], reach: float) -> None:
    """Raise DeviceError when an entry of a change is beyond what a sum has room for, or is no number."""
    largest = max(float(change.max()), -float(change.min())) if change.size else 0.0
    if not largest <= reach:
        raise DeviceError(
            f"its change has an entry of {largest:.3g}, which is beyond the {reach:.3g} that the sum has room for; "
            f"set update.secure_range higher or learning_rate lower"
        )


def to_words(change: NDArray[np.float32], share: float, *, devices: int, reach: float) -> Words:
    """A change [length] as whole numbers; share: w / W. DeviceError when an entry is beyond the sum's range."""
    check_reach(change, reach)
    words = np.empty(len(change), np.uint32)
    scale = share * scale_of(devices, reach)
    for start in range(0, len(change), PIECE):
        piece = slice(start, start + PIECE)
        words.view(np.int32)[piece] = np.rint(change[piece].astype(np.float64) * scale)
    return words


def to_mean(total: Words, weight: float, *, devices: int, scale: float) -> NDArray[np.float64]:
    """The mean behind a sum; weight: Σ w / W. ProtocolError for numbers that no changes can add up to."""
    signed = total.view(np.int32)
    if len(signed) and max(abs(int(signed.min())), abs(int(signed.max()))) > MOST_SUM + devices:
        raise ProtocolError("the sum has entries that no changes can add up to: somebody sent a wrong mask or change")
    mean: NDArray[np.float64] = signed.astype(np.float64) / (scale * weight)
    return mean


def add_stream(total: Words, seed: bytes, *, sign: int = 1) -> None:
    """Add (or with sign -1 take away) the stream of a seed of 32 bytes, in place: ChaCha20 of zeros.

    A seed is used for one stream only, so that its nonce may be zero.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    encryptor = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    zeros = bytes(WORD_BYTES * min(PIECE, len(total)))
    for start in range(0, len(total), PIECE):
        piece = total[start : start + PIECE]
        stream = np.frombuffer(encryptor.update(zeros[: WORD_BYTES * len(piece)]), "<u4")
        if sign > 0:
            np.add(piece, stream, out=piece)
        else:
            np.subtract(piece, stream, out=piece)


def read_words(data: bytes, length: int) -> Words:
    """Masked numbers from the wire; ProtocolError unless there are as many as were asked for."""
    if len(data) != WORD_BYTES * length:
        raise ProtocolError(f"it sent {len(data)} bytes of masked numbers but {WORD_BYTES * length} were asked for")
    return np.frombuffer(data, "<u4").astype(np.uint32)
