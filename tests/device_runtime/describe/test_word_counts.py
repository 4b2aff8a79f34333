"""Words are counted in what a model reads, every text once."""

import numpy as np
import pytest

from fedwright.device_runtime.describe.word_counts import MOST_WORDS, word_counts

TITLES = [[2, 3, 4, 5], [2, 3, 6, 2], [7, 2, 2, 3]]


def beginnings(*, left: bool) -> np.ndarray:
    """All beginnings of all titles, padded in front or behind, in a mixed order."""
    rows = []
    for title in TITLES:
        for length in range(1, len(title) + 1):
            padding = [0] * (len(title) - length)
            rows.append([*padding, *title[:length]] if left else [*title[:length], *padding])
    return np.array(rows)[np.random.default_rng(0).permutation(len(rows))]


@pytest.mark.parametrize("left", [True, False], ids=["padded in front", "padded behind"])
def test_beginnings_of_a_text_are_one_text(left: bool) -> None:
    # 2: once, twice, twice; 3: once in each; 4 to 7: once.
    assert word_counts(beginnings(left=left)) == [0, 0, 5, 3, 1, 1, 1, 1]


def test_a_text_that_is_there_twice_counts_twice() -> None:
    once = beginnings(left=True)
    assert word_counts(np.concatenate([once, once])) == [0, 0, 10, 6, 2, 2, 2, 2]


def test_a_missing_beginning_changes_nothing() -> None:
    rows = [[0, 0, 2], [2, 3, 4]]
    assert word_counts(np.array(rows)) == [0, 0, 1, 1, 1]


def test_padding_and_rare_words_do_not_count() -> None:
    assert word_counts(np.array([[1, 2, 1, 3], [0, 0, 0, 0], [0, 0, 1, 1]])) == [0, 0, 1, 1]


NO_WORDS = {
    "fractions": np.ones((2, 3), np.float32),
    "series": np.ones((2, 3, 4), np.int64),
    "below zero": np.array([[1, -1]]),
    "beyond any vocabulary": np.array([[MOST_WORDS, 1]]),
    "nothing": np.zeros((0, 3), np.int64),
}


@pytest.mark.parametrize("x", NO_WORDS.values(), ids=NO_WORDS)
def test_what_holds_no_words_has_no_counts(x: np.ndarray) -> None:
    assert word_counts(x) is None
