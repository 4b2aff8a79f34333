"""Sorted indices as gaps of one to five bytes, seven bits each, the low ones first."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedwright.protocol.errors import BadBlob

Array = npt.NDArray[Any]
MAX_BYTES = 5


def pack_gaps(indices: Array) -> Array:
    """Bytes for strictly rising indices: each as the number of entries skipped since the one before."""
    gaps: Array = np.diff(indices.astype(np.int64), prepend=-1) - 1
    lengths = np.ones(gaps.size, dtype=np.int64)
    for bits in range(7, 7 * MAX_BYTES, 7):
        lengths += gaps >> bits > 0
    starts = np.cumsum(lengths) - lengths
    packed = np.zeros(int(lengths.sum()), dtype=np.uint8)
    for place in range(MAX_BYTES):
        has = lengths > place
        more = np.where(lengths[has] > place + 1, 0x80, 0)
        packed[starts[has] + place] = (gaps[has] >> (7 * place)) & 0x7F | more
    return packed


def unpack_gaps(packed: Array, *, count: int, size: int) -> Array:
    """The `count` indices below `size` that `pack_gaps` packed; BadBlob when the bytes say anything else."""
    if packed.size > MAX_BYTES * count:
        raise BadBlob(f"{packed.size} bytes are too many for {count} indices")
    last = packed < 0x80
    if int(last.sum()) != count or (count and not last[-1]):
        raise BadBlob(f"indices do not end where their {count} values do")
    if not count:
        return np.zeros(0, dtype=np.int64)
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if int((ends - starts).max()) >= MAX_BYTES:
        raise BadBlob(f"an index takes more than {MAX_BYTES} bytes")
    places = np.arange(packed.size) - np.repeat(starts, ends - starts + 1)
    gaps = np.add.reduceat((packed & 0x7F).astype(np.int64) << (7 * places), starts)
    if int(gaps.max()) >= size:
        raise BadBlob(f"an index lies behind the {size} entries of its tensor")
    indices: Array = np.cumsum(gaps + 1) - 1
    if int(indices[-1]) >= size:
        raise BadBlob(f"an index lies behind the {size} entries of its tensor")
    return indices
