"""What the server takes in: a change is held to its norm, and nothing but a change."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.server_runtime.fleet.admission import clip_norm

CHANGE = {"w": np.array([[3.0, 0.0]], np.float32), "b": np.array([4.0], np.float32)}
MEASURED = {
    "prototypes": np.full((2, 2), 50.0, np.float32),
    "prototype_counts": np.array([400, 1], np.float32),
    "public_logits": np.full((3, 2), -20.0, np.float32),
}


@pytest.mark.parametrize("measured", [{}, MEASURED], ids=["change alone", "with what was measured"])
@pytest.mark.parametrize(("limit", "scale"), [(None, 1.0), (5.0, 1.0), (1.0, 0.2)], ids=["none", "met", "passed"])
def test_a_change_is_held_to_its_norm_and_what_was_measured_stays(
    limit: float | None, scale: float, measured: dict[str, NDArray[Any]]
) -> None:
    found = clip_norm({**CHANGE, **measured}, limit)

    # ||change|| = sqrt(3² + 4²) = 5
    for name, value in CHANGE.items():
        np.testing.assert_allclose(found.pop(name), scale * value)
    assert found.keys() == measured.keys()
    for name, value in measured.items():
        np.testing.assert_array_equal(found[name], value)
