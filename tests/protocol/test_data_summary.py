"""What a device tells of its data: its classes, and further facts only when they are asked for."""

import numpy as np
import pytest

from fedwright.device_runtime.data import load
from fedwright.protocol.data_summary import FACTS, DataSummary, held_back, told
from fedwright.protocol.errors import DataError

WHOLE = DataSummary(
    9,
    1,
    [1, 2, 2],
    3,
    class_counts=[5, 0, 4],
    score_counts=[7],
    pixel_std=0.5,
    descriptor=[1.0],
    number_descriptor=[2.0],
)


def test_unasked_only_the_class_indicator_is_told() -> None:
    said = told(WHOLE, ())

    assert said == DataSummary(9, 1, [1, 2, 2], 3, class_counts=[1, 0, 1], counted=False)
    assert said.known_counts is None
    assert held_back(WHOLE, ()) == list(FACTS)


@pytest.mark.parametrize("fact", FACTS)
def test_what_is_asked_for_is_told_and_nothing_beside_it(fact: str) -> None:
    said = told(WHOLE, [fact])

    fields = [field for fields in FACTS.values() for field in fields if field != "class_counts"]
    kept = [field for field in fields if getattr(said, field) is not None]
    assert kept == [field for field in FACTS[fact] if field != "class_counts"]
    assert said.known_counts == ([5, 0, 4] if fact == "class_counts" else None)
    assert held_back(WHOLE, [fact]) == [other for other in FACTS if other != fact]


def test_all_facts_together_are_the_whole_summary() -> None:
    assert told(WHOLE, list(FACTS)) == WHOLE
    assert held_back(WHOLE, list(FACTS)) == []


def test_a_device_without_data_says_its_classes_and_no_more() -> None:
    numbers, names = load("classes:3,1", holdout_ratio=0.2, seed=0), load("classes:cat,dog", holdout_ratio=0.2, seed=0)

    assert numbers.summary() == DataSummary(0, 0, [], 4, class_counts=[0, 1, 0, 1], counted=False)
    assert names.summary().class_names == ["cat", "dog"]
    assert np.array_equal(names.numbered_as(("ant", "cat", "dog")).class_counts, [0, 1, 1])


@pytest.mark.parametrize("text", ["", "3,,7", "3,3", "1000000"], ids=["none", "a gap", "twice", "too many"])
def test_classes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        load(f"classes:{text}", holdout_ratio=0.2, seed=0)
