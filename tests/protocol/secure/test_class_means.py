"""Class means of several devices, by way of a sum, are those of all their samples together."""

import numpy as np

from fedwright.protocol.secure.class_means import pooled_means, shared_means


def test_the_pool_has_the_means_of_all_samples() -> None:
    rng = np.random.default_rng(1)
    sets = [(rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for n in (12, 30, 5)]
    rows, weights = [], [len(y) for _, y in sets]
    for x, y in sets:
        counts = np.bincount(y, minlength=4).astype(np.float32)
        means = np.array([x[y == c].mean(axis=0) if counts[c] else np.zeros(4) for c in range(4)], np.float32)
        rows.append(shared_means(means, counts))
    shared, shares = (np.average([row[part] for row in rows], axis=0, weights=weights) for part in (0, 1))

    means, counts = pooled_means(shared, shares, sum(weights))

    x, y = (np.concatenate(both) for both in zip(*sets, strict=True))
    np.testing.assert_allclose(counts, np.bincount(y, minlength=4), atol=1e-4)
    for label in range(3):
        np.testing.assert_allclose(means[label], x[y == label].mean(axis=0), atol=1e-5)
    assert not means[3].any()


def test_a_device_without_counted_samples_adds_nothing() -> None:
    shared, shares = shared_means(np.ones((2, 3), np.float32), np.zeros(2, np.float32))
    assert not shared.any()
    assert not shares.any()
