"""How often each word occurs in a device's text: of the words that a model reads, never of labels."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Word ids that every vocabulary has: what fills up short texts, and what stands for all rare words.
PADDING, UNKNOWN = 0, 1
# Larger numbers are measured, or belong to no vocabulary.
MOST_WORDS = 262_144


def word_counts(x: NDArray[Any]) -> list[int] | None:
    """Counts by word id over texts x [n, length]; None when that holds no word numbers.

    Padding and rare words are no words of anybody's. Every text counts once: of rows that are the beginnings of one
    text (how a model learns to go on from each of them) only the longest does.
    """
    if x.dtype.kind not in "iu" or x.ndim != 2 or not x.size:
        return None
    if int(x.min()) < 0 or int(x.max()) >= MOST_WORDS:
        return None
    counts = np.zeros(int(x.max()) + 1, np.int64)
    for text, times in _texts(x):
        np.add.at(counts, text, times)
    counts[[word for word in (PADDING, UNKNOWN) if word < len(counts)]] = 0
    found: list[int] = counts.tolist()
    return found


def _texts(x: NDArray[Any]) -> Iterator[tuple[NDArray[np.uint32], int]]:
    """Each text without padding, and how often it is there apart from being the beginning of longer ones.

    In the order of the alphabet a beginning stands before all that goes on from it, so a stack holds the row's own.
    """
    rows, times = np.unique(_to_the_left(x), axis=0, return_counts=True)
    lengths = (rows != PADDING).sum(axis=1)
    open_rows: list[int] = []
    left = times.copy()
    for row in range(len(rows)):
        while open_rows and not _begins(rows, lengths, open_rows[-1], row):
            open_rows.pop()
        if open_rows and lengths[open_rows[-1]]:
            left[open_rows[-1]] -= times[row]
        open_rows.append(row)
    for row in np.flatnonzero((left > 0) & (lengths > 0)).tolist():
        yield rows[row, : lengths[row]], int(left[row])


def _begins(rows: NDArray[Any], lengths: NDArray[Any], first: int, second: int) -> bool:
    length = lengths[first]
    return bool((rows[first, :length] == rows[second, :length]).all())


def _to_the_left(x: NDArray[Any]) -> NDArray[np.uint32]:
    """Rows with their padding at the end, so that those which begin alike can be compared."""
    order = np.argsort(x == PADDING, axis=1, kind="stable")
    return np.take_along_axis(x, order, axis=1).astype(np.uint32)
