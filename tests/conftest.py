"""What every test shares: the order in which tiers run, fast ones first."""

from pathlib import Path

import pytest
from hypothesis import settings

from helpers.tools import build_wheel

TESTS = Path(__file__).parent
TIERS = {"contracts": 1, "e2e": 2}

# A busy machine makes single examples slow; pytest-timeout ends what really hangs.
settings.register_profile("fedwright", deadline=None)
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile("fedwright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Layout and unit tests first, then contracts, then end-to-end; inside a tier the order stays."""
    items.sort(key=lambda item: TIERS.get(item.path.relative_to(TESTS).parts[0], 0))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
