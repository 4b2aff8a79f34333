"""(ε, δ) of Gaussian mechanisms on samples of the devices, or of a device's examples, by the library `dp-accounting`.

Privacy loss distributions, rounded up, under the bound by Rényi divergence; the neighbour of a data set has one member
more or less. The library is imported where something is to be accounted for.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedwright.protocol.errors import ConfigError

# Beyond this the noise is none that anybody would call so.
LEAST_NOISE, MOST_NOISE = 1e-2, 1e4
# Beyond this ε only the bound by Rényi divergence is taken.
MOST_EXACT = 20.0
# Whole ones: the sums for others do not always converge.
ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]


@dataclass(frozen=True)
class Release:
    """`count` sums with noise of `noise_multiplier` times their sensitivity, each over members taken with sample_ratio.

    sample_ratio: each member is in a sum with this chance, by itself (Poisson sampling); 1: all, or nobody knows who.
    """

    noise_multiplier: float
    sample_ratio: float = 1.0
    count: int = 1


def epsilon(releases: Iterable[Release], delta: float, *, whole: bool = False) -> float:
    """ε at this δ of all releases together; infinite where one of them has no noise worth the name.

    whole: noise is of whole numbers, for which the bound by Rényi divergence holds alone (`distributed_multiplier`).
    """
    counts: Counter[tuple[float, float]] = Counter()
    for release in releases:
        counts[release.noise_multiplier, release.sample_ratio] += release.count
    return _epsilon(tuple(sorted(counts.items())), delta, whole)


@lru_cache(maxsize=4096)
def _epsilon(counts: tuple[tuple[tuple[float, float], int], ...], delta: float, whole: bool) -> float:
    if not any(count for _, count in counts):
        return 0.0
    if delta <= 0 or any(noise < LEAST_NOISE for (noise, _), _ in counts):
        return float("inf")
    library = _library()
    bound = _composed(library.rdp.RdpAccountant(ORDERS), counts, delta)
    # What is as large as this says nothing any more, and its distribution would not fit into memory.
    return bound if whole or bound > MOST_EXACT else min(bound, _composed(library.pld.PLDAccountant(), counts, delta))


def _composed(accountant: Any, counts: tuple[tuple[tuple[float, float], int], ...], delta: float) -> float:
    library = _library()
    for (noise, ratio), count in counts:
        gaussian = library.GaussianDpEvent(noise)
        accountant.compose(gaussian if ratio >= 1 else library.PoissonSampledDpEvent(ratio, gaussian), count)
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as err:
        raise ConfigError(
            'privacy is accounted for by the package dp-accounting; install it with `pip install "fedwright[private]"`'
        ) from err
    return dp_accounting


def noise_for(target: float, delta: float, *, sample_ratio: float, count: int, whole: bool = False) -> float:
    """The least noise multiplier, to 5 in 1,000, with which `count` releases stay within ε = target."""

    def enough(noise: float) -> bool:
        return epsilon([Release(noise, sample_ratio, count)], delta, whole=whole) <= target

    # From the middle outwards: with little noise the sums of the accountant are long.
    high = 1.0
    while not enough(high):
        high *= 2
        if high > MOST_NOISE:
            raise ConfigError(f"no noise below {MOST_NOISE:g} keeps {count} rounds within epsilon {target}; allow more")
    while high > 4 * LEAST_NOISE and enough(high / 2):
        high /= 2
    low = high / 2
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def distributed_multiplier(variance: int, devices: int, *, sensitivity: float, entries: int) -> float:
    """The noise multiplier of a sum in which `devices` shares of discrete noise are, as Rényi accounting may take it.

    Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism (2021), Theorem 1: shares of variance σ² on
    `entries` whole numbers, of which one device moves the vector by at most `sensitivity`, are ε²/2-concentrated with
    ε = min(sqrt(Δ²/(nσ²) + τ d / 2), Δ/(sqrt(n) σ) + τ sqrt(d)) and τ = 10 Σ_{k<n} exp(-2 π² σ² k/(k+1)).
    """
    tau = 10 * sum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, devices))
    ratio = sensitivity / math.sqrt(devices * variance)
    return 1 / min(math.sqrt(ratio**2 + tau * entries / 2), ratio + tau * math.sqrt(entries))
