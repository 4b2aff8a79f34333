"""Names of classes: one spelling, limits that keep messages small, and places in another list."""

import pytest

from fedwright.protocol.class_names import MAX_NAMES, checked_names, places_in, shown
from fedwright.protocol.errors import DataError


def test_one_class_in_two_spellings_is_one_class() -> None:
    assert checked_names(["re\u0301sume\u0301 ", " cat"], where="here") == ("r\u00e9sum\u00e9", "cat")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["cat", " "], "here: the class name '' must have 1 to 200 letters", id="empty"),
        pytest.param(["c" * 201], "'cccccccccccccccccccc' must have 1 to 200", id="long"),
        pytest.param(["cat", "dog", "cat "], "the class 'cat' is there twice", id="twice"),
        pytest.param([str(n) for n in range(MAX_NAMES + 1)], "10001 class names .* number such", id="many"),
        pytest.param([f"{n:0150d}" for n in range(500)], "500 class names of 75000 bytes", id="large"),
    ],
)
def test_names_that_cannot_travel(names: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        checked_names(names, where="here")


def test_places_and_the_first_name_without_one() -> None:
    assert places_in(["ant", "cat", "dog"], ["dog", "ant"]) == [2, 0]
    with pytest.raises(DataError, match=r"the class 'wolf' is none of the run's classes \(ant, cat\)"):
        places_in(["ant", "cat"], ["cat", "wolf", "yak"])


def test_many_names_are_shown_in_part() -> None:
    assert shown(["a", "b", "c"], most=2) == "a, b and 1 more"
