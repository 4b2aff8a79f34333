"""Numbers of four bits with one scale for each block of 64: two to a byte, the first of them in the low half."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Entries that share a scale: in smaller blocks the scales would weigh as much as what they gain.
BLOCK = 64
# q in -7 … 7; stored as q + 8, so that half a byte holds it.
LARGEST, OFFSET = 7, 8


def scale_count(count: int) -> int:
    """How many scales so many numbers have."""
    return -(-count // BLOCK)


def byte_count(count: int) -> int:
    """How many bytes so many numbers take, without their scales."""
    return -(-count // 2)


def pack(values: Array) -> tuple[Array, Array]:
    """q = round(x / s), s = max |x| / 7 in each block; bytes and scales."""
    blocks = np.zeros((scale_count(values.size), BLOCK), np.float32)
    blocks.reshape(-1)[: values.size] = values.reshape(-1)
    scales = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(LARGEST)
    # The smallest numbers have no inverse; such a block is as good as zero.
    usable = scales > np.finfo(np.float32).tiny
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=usable)
    levels = np.rint(blocks * inverse[:, None]).astype(np.int8).reshape(-1)[: 2 * byte_count(values.size)]
    stored = (levels + OFFSET).astype(np.uint8).reshape(-1, 2)
    return stored[:, 0] | (stored[:, 1] << 4), scales.astype(np.float32)


def unpack(packed: Array, scales: Array, count: int) -> Array:
    """The numbers again; packed: `byte_count` bytes, scales: `scale_count` of them, both checked by the caller."""
    levels = np.empty((packed.size, 2), np.int8)
    levels[:, 0], levels[:, 1] = (packed & 0x0F).astype(np.int8) - OFFSET, (packed >> 4).astype(np.int8) - OFFSET
    values: Array = levels.reshape(-1)[:count].astype(np.float32)
    values *= np.repeat(scales, BLOCK)[:count]
    return values
