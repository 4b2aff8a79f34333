"""The predictor: features by hand, growth with size, unknown operators, learning from real times."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from fedwright.protocol.errors import BadArtifact, BadMessage
from fedwright.protocol.predictor import WORK_BATCHES, Profile, Refinement, predict, profile_from_json, work_at

# 2 µs a call, 1 ns an element.
CHEAP = [2e-6, 0.0, 1e-9, 0.0, 0.0, 0.0, 0.0]


def table(kind: str, per_batch: Callable[..., Any] | type[float]) -> dict[str, list[float]]:
    """A table in which a kind has one call and so many elements at each batch size."""
    return {kind: [value for batch in WORK_BATCHES for value in (1.0, 0.0, per_batch(batch), 0.0, 0.0, 0.0, 0.0)]}


def profile(**changes: Any) -> Profile:
    return Profile("board", "onnxruntime 1", 1, **{"kinds": {"Add": CHEAP}, "spread": 0.25, **changes})


def test_prediction_is_the_sum_with_its_range() -> None:
    found = predict(profile(step_s=1e-3), table("Add", lambda batch: 1e6 * batch), batch=8)

    # 1 ms + 2 µs + 8e6 elements at 1 ns
    assert found.step_s == pytest.approx(1e-3 + 2e-6 + 8e-3)
    assert found.high_s == pytest.approx(found.step_s * 1.25)
    assert found.low_s == pytest.approx(found.step_s / 1.25)
    assert found.unknown == ()


@pytest.mark.parametrize(("batch", "elements"), [(1, 10), (20, 200), (128, 1280), (256, 2560)])
def test_amounts_between_and_beyond_the_sizes_of_a_table(batch: int, elements: int) -> None:
    assert work_at(table("Add", lambda size: 10.0 * size), batch)["Add"][2] == pytest.approx(elements)


def test_a_larger_batch_never_costs_less() -> None:
    work = table("Add", lambda batch: 1e5 * batch**1.1)
    times = [predict(profile(), work, batch=batch).step_s for batch in range(1, 300)]

    assert times == sorted(times)


def test_an_unknown_operator_is_flagged_and_dear() -> None:
    known = predict(profile(), table("Add", lambda batch: 1e5 * batch), batch=8)
    found = predict(profile(), table("Strange", lambda batch: 1e5 * batch), batch=8)

    assert found.unknown == ("Strange",)
    assert found.step_s >= known.step_s
    assert found.low_s < known.low_s


def test_an_unknown_variant_costs_as_much_as_its_dearest_relative() -> None:
    dear = [value * 3 for value in CHEAP]
    has = profile(kinds={"Add": CHEAP, "Add broadcast": dear, "Mul": [value * 9 for value in CHEAP]})

    found = predict(has, table("Add sideways", lambda batch: 1e5), batch=1)

    assert found.unknown == ("Add sideways",)
    assert found.step_s == pytest.approx(3 * (2e-6 + 1e-4))


def test_real_times_refine_the_prediction() -> None:
    refinement = Refinement()

    assert refinement.note(0.2, 0.1) == pytest.approx(2.0)
    # 0.7 ln 2 + 0.3 ln 1
    assert refinement.note(0.1, 0.1) == pytest.approx(2.0**0.7)
    assert refinement.note(0.0, 0.1) == pytest.approx(2.0**0.7)
    refined = predict(profile(refined=refinement.ratio), table("Add", lambda batch: 1e6), batch=1)
    assert refined.step_s == pytest.approx((1e-3 + 2e-6) * 2.0**0.7)


def test_a_profile_survives_json() -> None:
    has = profile(power_mode="15W", warnings=["hot"], link={"round_trip_s": 0.1})

    assert profile_from_json(has.to_json()) == has
    assert has.key == "board | onnxruntime 1 | 1 thread | 15W"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"kinds": {"Add": [1.0]}}, id="another release's features"),
        pytest.param({"kinds": {"Add": [-value for value in CHEAP]}}, id="negative"),
        pytest.param({"format": 2}, id="format"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(change: dict[str, dict[str, list[float]] | int]) -> None:
    with pytest.raises(BadMessage, match="measure again"):
        profile_from_json(profile(**change).to_json())


def test_a_table_of_another_release_is_refused() -> None:
    with pytest.raises(BadArtifact, match="3 numbers"):
        predict(profile(), {"Add": [1.0, 2.0, 3.0]}, batch=8)


def test_nothing_to_go_by_is_no_crash() -> None:
    assert math.isfinite(predict(Profile("b", "r", 1), table("Add", float), batch=1).step_s)
