"""Means of whole tensors by every choice, on numbers that can be checked by head."""

from typing import Any

import numpy as np
import pytest

from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.blocks.robust_mean import robust_mean


def tensors(*values: float) -> list[dict[str, np.ndarray]]:
    return [{"a": np.array([value], np.float32), "b": np.array([-value], np.float32)} for value in values]


@pytest.mark.parametrize(("kind", "expected"), [("mean", 22.0), ("median", 3.0), ("multi_krum", 2.5), ("krum", 2.0)])
def test_each_choice_joins_all_tensors_alike(kind: Any, expected: float) -> None:
    rows = tensors(1, 2, 3, 4, 100)

    found = robust_mean(rows, Combine(kind, hostile_ratio=0.25), changes=rows)

    assert (found["a"][0], found["b"][0]) == (expected, -expected)
    assert found["a"].dtype == np.float32


def test_who_counts_is_decided_by_the_changes_and_not_by_what_is_joined() -> None:
    found = robust_mean(
        tensors(1, 2, 3, 4, 5), Combine("multi_krum", hostile_ratio=0.25), changes=tensors(1, 1, 99, 1, 1)
    )

    assert found["a"][0] == 3.0
