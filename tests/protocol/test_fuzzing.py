"""The long profile of `make fuzz` reaches every property of the protocol."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from helpers.examples import few


@pytest.fixture
def profile() -> Iterator[Callable[..., Any]]:
    """Loads a profile for one test."""
    settings.register_profile("before", settings())
    yield settings.load_profile
    settings.load_profile("before")


@pytest.mark.parametrize(("name", "examples"), [("fedwright", 20), ("long", 20_000)])
def test_slow_properties_get_few_examples_in_ordinary_runs_alone(
    profile: Callable[..., Any], name: str, examples: int
) -> None:
    profile(name)
    assert few(20).max_examples == examples
    assert few(20).deadline is None


def test_no_property_of_the_protocol_has_a_number_of_its_own() -> None:
    pinned = re.compile(r"settings\(.*max_examples")
    assert [path.name for path in Path(__file__).parent.rglob("*.py") if pinned.search(path.read_text())] == []
