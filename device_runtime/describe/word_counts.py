"""How often each word occurs in the labels of text, which says more of a device than all its labels do."""

from collections.abc import Sequence

# Word ids that every vocabulary has: what fills up short texts, and what stands for all rare words.
PADDING, UNKNOWN = 0, 1


def word_counts(counts: Sequence[int]) -> list[int]:
    """Counts by word id without those of padding and rare words, which are no words of anybody's."""
    return [0 if word in (PADDING, UNKNOWN) else count for word, count in enumerate(counts)]
