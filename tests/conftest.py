"""What every test shares: the order in which tiers run, and that none leaves anything behind for the others."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from helpers.global_state import leaves_nothing, module_leaves_nothing
from helpers.tools import build_wheel, shared_in_run
from release_steps.installs import WHEEL
from testrun.plan import tier

__all__ = ["leaves_nothing", "module_leaves_nothing"]

TESTS = Path(__file__).parent

# A busy machine makes single examples slow; pytest-timeout ends what really hangs.
settings.register_profile("fedwright", deadline=None)
settings.register_profile("hostile", deadline=None, max_examples=150)
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile("fedwright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Layout and unit tests first, then contracts, then end-to-end; inside a tier the order stays."""
    items.sort(key=lambda item: tier(item.path.relative_to(TESTS)))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree, built once for all groups of a run; or the one that is about to be released."""
    if WHEEL in os.environ:
        return Path(os.environ[WHEEL])
    [built] = shared_in_run("wheel", tmp_path_factory, build_wheel).glob("*.whl")
    return built


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left when the test ends."""
    with ExitStack() as entered:
        yield entered
