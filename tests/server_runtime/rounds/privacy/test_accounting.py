"""What is accounted agrees with published numbers, with a closed form and with accountants of others."""

import math

import pytest
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy import optimize, stats  # type: ignore[import-untyped]

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.rounds.privacy.accounting import (
    Release,
    distributed_multiplier,
    epsilon,
    noise_for,
)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The exact ε of one Gaussian mechanism (Balle and Wang, 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        tail = stats.norm.cdf(1 / (2 * noise) - eps * noise)
        return float(tail - math.exp(eps) * stats.norm.cdf(-1 / (2 * noise) - eps * noise) - delta)

    return float(optimize.brentq(excess, 0, 50))


@pytest.mark.parametrize("noise", [0.7, 1.0, 4.0])
def test_one_gaussian_mechanism_has_its_exact_epsilon(noise: float) -> None:
    assert epsilon([Release(noise)], 1e-5) == pytest.approx(gaussian_epsilon(noise, 1e-5), rel=1e-3)


def test_many_of_them_are_one_with_less_noise() -> None:
    # k mechanisms with noise z are one with z / sqrt(k)
    assert epsilon([Release(4.0, 1.0, 16)], 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)


def test_sampled_rounds_are_no_worse_than_abadi_et_al_published() -> None:
    # Deep Learning with Differential Privacy (2016), Sec. 3.2: q = 0.01, sigma = 4, 10,000 steps: (1.26, 1e-5)
    found = epsilon([Release(4.0, 0.01, 10_000)], 1e-5)

    assert 0.9 < found < 1.26


@pytest.mark.parametrize(("noise", "ratio", "count"), [(1.1, 256 / 60_000, 3000), (0.8, 0.05, 200)])
def test_other_accountants_agree(noise: float, ratio: float, count: int) -> None:
    found = epsilon([Release(noise, ratio, count)], 1e-5)

    numerical = PRVAccountant()
    numerical.history = [(noise, ratio, count)]
    assert found == pytest.approx(numerical.get_epsilon(1e-5), rel=0.02)
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    spent = opacus_rdp.compute_rdp(q=ratio, noise_multiplier=noise, steps=count, orders=orders)
    bound, _ = opacus_rdp.get_privacy_spent(orders=orders, rdp=spent, delta=1e-5)
    assert 0.8 * bound < found < bound


def test_unlike_releases_add_up() -> None:
    both = epsilon([Release(1.0, 0.1, 10), Release(2.0, 0.1, 10), Release(1.0, 0.1, 5)], 1e-5)

    assert both == epsilon([Release(1.0, 0.1, 15), Release(2.0, 0.1, 10)], 1e-5)
    assert both > epsilon([Release(1.0, 0.1, 15)], 1e-5)


def test_nothing_told_costs_nothing_and_no_noise_costs_all() -> None:
    assert epsilon([], 1e-5) == 0
    assert math.isinf(epsilon([Release(0.0)], 1e-5))
    assert math.isinf(epsilon([Release(1.0)], 0.0))


def test_the_noise_for_a_budget_is_the_least_that_keeps_it() -> None:
    noise = noise_for(2.0, 1e-5, sample_ratio=0.2, count=20)

    assert 1.95 < epsilon([Release(noise, 0.2, 20)], 1e-5) <= 2.0
    assert epsilon([Release(noise / 1.01, 0.2, 20)], 1e-5) > 2.0


def test_a_budget_that_no_noise_keeps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no noise below .* allow more"):
        noise_for(1e-7, 1e-12, sample_ratio=1.0, count=1_000_000)


def test_shares_of_discrete_noise_are_worth_what_their_sum_is() -> None:
    # 16 shares of variance 25 make sigma 20; a sensitivity of 10 gives a multiplier of 2, and tau is about 1e-105
    found = distributed_multiplier(25, 16, sensitivity=10.0, entries=1_000_000)

    assert found == pytest.approx(2.0, rel=1e-9)
    whole, smooth = (epsilon([Release(found, 1.0, 3)], 1e-5, whole=kind) for kind in (True, False))
    assert smooth < whole < 1.15 * smooth


def test_small_shares_cost_more_than_their_sum() -> None:
    # variance 1: tau = 10 (e^(-pi^2) + e^(-4 pi^2 / 3) + ...), which a million entries make large
    assert distributed_multiplier(1, 400, sensitivity=10.0, entries=1_000_000) < 0.5 * (400**0.5 / 10)
