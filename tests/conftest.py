"""What every test shares: the order in which tiers run, fast ones first."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TIERS = {"contracts": 1, "e2e": 2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Layout and unit tests first, then contracts, then end-to-end; inside a tier the order stays."""
    items.sort(key=lambda item: TIERS.get(item.path.relative_to(TESTS).parts[0], 0))
