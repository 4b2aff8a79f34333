"""Frozen matrices in few bits: 8 per entry with a scale per row, or 4 with a scale per 32 entries of a row.

int8   w[i, j] = scale[i] q[i, j]                       q in -127..127
int4   w[i, j] = scale[i, j // 32] (q[i, j] - 8)        q in 1..15; columns are filled up to a multiple of 64, and one
       byte holds column j in its lower half and column j + columns / 2 in its upper one
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Packing = Literal["float32", "int8", "int4"]
BLOCK = 32
# Smaller tensors stay as they are: scales would eat what is won.
LEAST_ENTRIES = 4096
PACKED, SCALES = "packed", "scales"


def is_packed(shape: tuple[int, ...]) -> bool:
    """Whether a frozen tensor of this shape is worth packing."""
    return len(shape) > 1 and int(np.prod(shape)) >= LEAST_ENTRIES


def columns(shape: tuple[int, ...]) -> int:
    """Columns of a matrix with the first axis as rows, filled up for blocks of four bits."""
    entries = int(np.prod(shape[1:]))
    return -(-entries // (2 * BLOCK)) * 2 * BLOCK


def packed_shapes(shape: tuple[int, ...], kind: Packing) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of packed entries and of their scales."""
    if kind == "int8":
        return shape, shape[:1]
    return (shape[0], columns(shape) // 2), (shape[0], columns(shape) // BLOCK)


def pack(values: Array, kind: Packing) -> tuple[Array, Array]:
    """Entries in few bits, and their scales."""
    rows = values.reshape(len(values), -1)
    if kind == "int8":
        scales = _scales(rows, 127)
        return np.rint(rows / scales[:, None]).astype(np.int8).reshape(values.shape), scales
    filled = np.zeros((len(rows), columns(values.shape)), np.float32)
    filled[:, : rows.shape[1]] = rows
    blocks = filled.reshape(len(rows), -1, BLOCK)
    scales = _scales(blocks, 7)
    whole = (np.rint(blocks / scales[..., None]) + 8).astype(np.uint8).reshape(filled.shape)
    half = filled.shape[1] // 2
    return whole[:, :half] | (whole[:, half:] << 4), scales


def unpack(entries: Array, scales: Array, shape: tuple[int, ...]) -> Array:
    """The matrix that a device computes with."""
    if entries.dtype == np.int8:
        return (entries * scales.reshape(-1, *(1,) * (entries.ndim - 1))).astype(np.float32)
    whole = np.concatenate([entries & 15, entries >> 4], axis=1).astype(np.float32) - 8
    blocks = whole.reshape(len(entries), -1, BLOCK) * scales[..., None]
    filled: Array = blocks.reshape(len(entries), -1)[:, : int(np.prod(shape[1:]))].reshape(shape)
    return filled


def _scales(rows: Array, largest: int) -> Array:
    """One per row of the last axis, never zero."""
    found = np.abs(rows).max(axis=-1).astype(np.float32) / np.float32(largest)
    return np.where(found > 0, found, np.float32(1))
