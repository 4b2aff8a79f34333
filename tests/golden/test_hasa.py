"""HASA's published figures: Table III (widths), Table II (cost), and the other rules on the same inputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.allocation import WidthBudget, allocate, realised_budget
from fedwright.server_runtime.evaluate.metrics import LstmCost

SAMPLES = [6054, 2570, 3354, 13215, 1195, 1719, 141]
JSD = [0.110, 0.120, 0.096, 0.043, 0.105, 0.121, 0.192]
BUDGET = WidthBudget(total=0.5, least=0.2, most=0.8, passes=2)

WIDTHS = {
    "hasa": [73.1, 80.0, 43.8, 29.2, 58.4, 80.0, 80.0],
    "size": [41.1, 27.2, 30.3, 69.8, 21.7, 23.8, 20.0],
    "mixed": [52.4, 49.1, 34.9, 53.9, 35.0, 52.4, 53.9],
    "inverse": [38.7, 31.0, 54.2, 61.9, 46.5, 23.2, 20.0],
    "uniform": [50.0] * 7,
}


@pytest.mark.parametrize("rule", WIDTHS)
def test_widths_of_every_rule(rule: Any) -> None:
    widths = 100 * allocate(rule, JSD, SAMPLES, BUDGET)
    np.testing.assert_allclose(widths, WIDTHS[rule], atol=0.0501)


def test_one_pass_fewer_does_not_give_table_iii() -> None:
    widths = 100 * allocate("hasa", JSD, SAMPLES, WidthBudget(passes=1))
    assert np.abs(widths - WIDTHS["hasa"]).max() > 1


def test_realised_budget_is_printed_as_49_6() -> None:
    assert realised_budget(list(allocate("hasa", JSD, SAMPLES, BUDGET)), SAMPLES) == pytest.approx(0.4955, abs=5e-5)


@pytest.mark.parametrize(
    "budget", [WidthBudget(passes=20), WidthBudget(tolerance=1e-4)], ids=["20 passes", "tolerance"]
)
def test_more_passes_meet_the_budget(budget: WidthBudget) -> None:
    widths = allocate("hasa", JSD, SAMPLES, budget)
    np.testing.assert_allclose(100 * widths, [73.9, 80, 44.4, 29.6, 59.2, 80, 80], atol=0.0601)
    assert realised_budget(list(widths), SAMPLES) == pytest.approx(0.5, abs=1e-4)


def test_a_square_budget_is_met_in_squares() -> None:
    budget = WidthBudget(total=0.25, least=0.4, most=1.0, power=2, tolerance=1e-6)
    widths = allocate("hasa", JSD, SAMPLES, budget)
    assert realised_budget(list(widths), SAMPLES, power=2) == pytest.approx(0.25, abs=1e-5)


def test_table_ii_costs() -> None:
    cost = LstmCost()
    assert cost.params(1.0) == 1_718_509
    weights = np.array(SAMPLES) / sum(SAMPLES)

    def macs(rule: Any) -> float:
        return 100 * sum(weights * [cost.macs(r) for r in allocate(rule, JSD, SAMPLES, BUDGET)]) / cost.macs(1.0)

    def megabytes(rule: Any) -> float:
        return sum(weights * [4e-6 * cost.params(r) for r in allocate(rule, JSD, SAMPLES, BUDGET)])

    assert [round(macs(rule), 2) for rule in ("hasa", "uniform", "size")] == [36.98, 34.81, 36.85]
    assert [round(megabytes(rule), 2) for rule in ("hasa", "uniform", "size")] == [4.08, 4.06, 4.09]
    assert round(4e-6 * cost.params(1.0), 2) == 6.87


def test_a_single_device_gets_the_budget() -> None:
    assert allocate("hasa", [0.3], [10], BUDGET) == pytest.approx([0.5])


def test_ties_share_their_mean_rank() -> None:
    widths = allocate("hasa", [0.1, 0.1, 0.2], [1, 1, 1], WidthBudget(passes=20))
    assert widths[0] == widths[1] < widths[2]


BAD = {
    "width 0": (lambda: WidthBudget(least=0.0), "least width is 0.0 but must be above 0"),
    "width above 1": (lambda: WidthBudget(most=1.5), "most width is 1.5"),
    "least above most": (lambda: WidthBudget(least=0.8, most=0.4), "above the most"),
    "budget too large": (lambda: WidthBudget(total=0.9), "budget 0.9 cannot be met"),
    "budget too small": (lambda: WidthBudget(total=0.1), "budget 0.1 cannot be met"),
    "cap below least": (lambda: allocate("hasa", JSD, SAMPLES, BUDGET, caps=[0.1] + [1] * 6), "device number 1"),
    "caps too low": (lambda: allocate("hasa", JSD, SAMPLES, BUDGET, caps=[0.3] * 7), "caps allow a budget of 0.300"),
    "no samples": (lambda: allocate("hasa", [0.1], [0], BUDGET), "every device needs samples"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_a_wrong_budget_is_one_sentence(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
