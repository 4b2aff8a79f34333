"""Descriptors: the same everywhere, different for different data, for any kind of input."""

import numpy as np
import pytest

from fedwright.device_runtime.describe.features import SIZE, describe

RNG = np.random.default_rng(0)
KINDS = {
    "image": RNG.normal(size=(70, 3, 9, 9)).astype(np.float32),
    "dot": RNG.normal(size=(5, 1, 1, 1)).astype(np.float32),
    "vector": RNG.normal(size=(5, 12)).astype(np.float32),
    "series": RNG.normal(size=(5, 6, 20)).astype(np.float32),
    "words": RNG.integers(0, 9999, (5, 23)),
}


@pytest.mark.parametrize("x", KINDS.values(), ids=KINDS)
def test_a_descriptor_is_finite_and_repeatable(x):
    found = describe(x)
    assert len(found) == SIZE
    assert np.isfinite(found).all()
    assert np.any(found)
    assert describe(x.copy()) == found
    assert describe(x[:3]) != found


def test_it_is_the_mean_over_samples():
    x = KINDS["vector"]
    single = np.mean([describe(x[row : row + 1]) for row in range(len(x))], axis=0)
    np.testing.assert_allclose(describe(x), single, rtol=1e-5)


def test_no_samples_give_zeros():
    assert describe(np.zeros((0, 1, 8, 8), np.float32)) == [0.0] * SIZE
