"""The mean that hides a device: each change is clipped, everybody counts the same, the noise is on the sum."""

import numpy as np
import pytest

from fedwright.protocol.crypto.noise import SecureNoise
from fedwright.server_runtime.blocks.private_mean import CentralNoise, PrivateMean
from fedwright.server_runtime.blocks.slicing import Axis

AXES = {"w": (None,), "n": ()}
NONE = 1e-9


def mean_of(central: CentralNoise, *parts: list[float], weight: float = 1.0) -> np.ndarray:
    mean = PrivateMean({"w": np.zeros(2, np.float32)}, {"w": (None,)}, central)
    for part in parts:
        mean.add({"w": np.array(part, np.float32)}, {}, weight)
    return mean.result()["w"]


def test_long_changes_are_cut_to_the_clip_and_all_is_divided_by_the_expected_number() -> None:
    central = CentralNoise(clip=1.0, multiplier=NONE, expected=4.0)

    # (3, 4) has norm 5 and becomes (0.6, 0.8); (0.2, 0) stays; a weight of 1000 counts for nothing
    found = mean_of(central, [3.0, 4.0], [0.2, 0.0], weight=1000.0)

    np.testing.assert_allclose(found, [0.8 / 4, 0.8 / 4], atol=1e-6)


def test_one_device_moves_the_sum_by_at_most_the_clip_whatever_it_sends() -> None:
    central = CentralNoise(clip=0.5, multiplier=NONE, expected=1.0)
    others = [[0.1, 0.2], [-0.3, 0.4]]
    without = mean_of(central, *others)

    for sent in ([1e6, -1e6], [0.0, 0.0], [-0.4, 0.3], [1e-3, 7.0]):
        assert np.linalg.norm(mean_of(central, *others, sent) - without) <= 0.5 + 1e-5


def test_the_norm_is_that_of_all_tensors_together() -> None:
    mean = PrivateMean(
        {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)},
        {"a": (None,), "b": (None,)},
        CentralNoise(clip=5.0, multiplier=NONE, expected=1.0),
    )
    mean.add({"a": np.array([6.0], np.float32), "b": np.array([8.0], np.float32)}, {}, 1.0)
    found = mean.result()

    np.testing.assert_allclose([found["a"][0], found["b"][0]], [3.0, 4.0], rtol=1e-5)


def test_noise_has_the_size_that_is_accounted_also_where_no_device_has_trained() -> None:
    central = CentralNoise(clip=2.0, multiplier=1.5, expected=10.0, noise=SecureNoise(bytes(32)))
    mean = PrivateMean({"w": np.zeros(100_000, np.float32)}, {"w": (Axis("c"),)}, central)
    mean.add({"w": np.zeros(10, np.float32)}, {"c": np.arange(10)}, 1.0)

    found = mean.result()["w"]

    # 1.5 * 2 / 10; the error of a standard deviation over 100,000 draws is 0.2 %
    assert found.std() == pytest.approx(0.3, rel=0.02)
    assert abs(found.mean()) < 0.005


def test_whole_numbers_stay_as_they_are() -> None:
    mean = PrivateMean({"n": np.array(3)}, {"n": ()}, CentralNoise(1.0, 1.0, 1.0))
    mean.add({"n": np.array(9)}, {}, 1.0)

    assert mean.result()["n"] == 3


def test_the_clip_moves_to_the_median_of_the_norms() -> None:
    rng = np.random.default_rng(1)
    central = CentralNoise(
        clip=10.0, multiplier=0.1, expected=100.0, quantile=0.5, rate=0.2, noise=SecureNoise(bytes(32))
    )
    for _ in range(60):
        mean_of(central, *([float(norm), 0.0] for norm in rng.uniform(0.5, 1.5, 100)))
        central.settle()

    # norms are even between 0.5 and 1.5: their median is 1
    assert central.clip == pytest.approx(1.0, abs=0.15)


def test_the_noise_on_the_count_is_paid_for_by_more_on_the_sum() -> None:
    central = CentralNoise(clip=1.0, multiplier=1.0, expected=100.0, quantile=0.5)

    # Andrew et al., Theorem 1: z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2) with sigma_b = 100 / 20
    assert central.count_noise == 5.0
    assert central.sum_multiplier == pytest.approx((1 - 0.01) ** -0.5)
    assert CentralNoise(1.0, 1.0, 4.0, quantile=0.5).sum_multiplier == pytest.approx((4 / 3) ** 0.5)
