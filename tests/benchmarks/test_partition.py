"""Partitioners deal every row once, the same way for the same seed."""

import numpy as np

from fedwright.benchmarks.datasets import load
from fedwright.benchmarks.partition import by_dirichlet


def test_digits_for_eight_devices() -> None:
    data = load("digits")

    shares = by_dirichlet(data.y_train, 8, alpha=0.3, rng=np.random.default_rng(7))

    dealt = np.concatenate([share.rows for share in shares.values()])
    assert sorted(dealt.tolist()) == list(range(len(data.y_train)))
    assert min(len(share.rows) for share in shares.values()) >= 10
    assert min(len(share.test) for share in shares.values()) >= 1
