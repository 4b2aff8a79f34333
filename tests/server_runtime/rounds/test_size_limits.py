"""How large a change may be beside others', on numbers that can be checked by head."""

import numpy as np
import pytest

from fedwright.server_runtime.rounds.size_limits import ChangeSize, SizeLimits, held_counts, limits_of


def change(weight: float, bias: float = 0.0, *, entries: int = 4) -> dict[str, np.ndarray]:
    return {"w": np.full(entries, weight, np.float32), "b": np.full(1, bias, np.float32)}


def limits(*changes: dict[str, np.ndarray], factor: float = 2.0) -> SizeLimits:
    found = limits_of([ChangeSize.of(one) for one in changes], factor)
    assert found is not None
    return found


def test_a_change_is_held_to_a_multiple_of_the_median() -> None:
    # Norms 2, 2, 4 of the weights: the median is 2 and twice that the most.
    held = limits(change(1), change(1), change(2)).held(change(100))
    np.testing.assert_allclose(held["w"], np.full(4, 2.0))


def test_a_change_within_the_limit_stays_as_it_is() -> None:
    own = change(1.5)
    assert limits(change(1), change(1), change(2)).held(own)["w"] is own["w"]


def test_one_tensor_may_not_take_all_that_a_whole_change_may() -> None:
    usual = [change(1, 0.01) for _ in range(3)]
    # The whole has root mean square 0.894, and a tensor may have two times twice that: 3.58.
    held = limits(*usual).held(change(0, 1000))
    np.testing.assert_allclose(held["b"], [4 * np.sqrt(4.0001 / 5)], rtol=1e-5)


def test_of_two_changes_none_is_held() -> None:
    assert limits_of([ChangeSize.of(change(1)), ChangeSize.of(change(9))], 2.0) is None


def test_wide_and_narrow_submodels_are_held_to_whichever_measure_allows_more() -> None:
    narrow, wide = change(4, entries=4), change(1, entries=100)
    found = limits(narrow, narrow, wide)
    assert found.held(wide)["w"] is wide["w"]
    assert found.held(narrow)["w"] is narrow["w"]


def test_a_median_of_nothing_limits_nothing() -> None:
    own = change(5)
    assert limits(change(0), change(0), change(5)).held(own)["w"] is own["w"]


@pytest.mark.parametrize("name", ["public_logits", "prototypes"])
def test_what_was_measured_is_held_to_what_others_measured(name: str) -> None:
    rows = [change(1) | {name: np.array([[1.0, 1.0], [0.0, 0.0]], np.float32)} for _ in range(3)]
    lie = change(1) | {name: np.array([[1e9, 1e9], [0.0, 0.0]], np.float32)}
    held = limits(*rows).held(lie)
    np.testing.assert_allclose(held[name], [[2, 2], [0, 0]])
    assert held["w"] is lie["w"]


def test_counts_are_of_no_more_samples_than_a_device_counts_for() -> None:
    said = {"prototype_counts": np.array([900.0, 100.0], np.float32)}
    np.testing.assert_allclose(held_counts(said, 10)["prototype_counts"], [9, 1])
    assert held_counts(said, None) is said
    assert held_counts(said, 1000) is said
