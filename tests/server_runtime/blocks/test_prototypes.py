"""Class prototypes over devices that hold different classes."""

import numpy as np
import pytest

from fedwright.protocol.errors import BadUpdate
from fedwright.server_runtime.blocks.prototypes import Prototypes, check_owned, disturbed

ONE = (np.array([[2.0, 0.0], [0.0, 0.0], [4.0, 4.0]]), np.array([3, 0, 1]))
TWO = (np.array([[4.0, 2.0], [0.0, 0.0], [0.0, 0.0]]), np.array([1, 0, 0]))


def test_the_mean_is_over_those_who_hold_a_class() -> None:
    prototypes = Prototypes.empty(3, 2)
    prototypes.add(*ONE)
    prototypes.add(*TWO)
    prototypes.advance()
    np.testing.assert_allclose(prototypes.values, [[3, 1], [0, 0], [4, 4]])
    assert prototypes.known.tolist() == [1, 0, 1]


def test_it_may_be_weighted_by_samples() -> None:
    prototypes = Prototypes.empty(3, 2, by_count=True)
    prototypes.add(*ONE)
    prototypes.add(*TWO)
    prototypes.advance()
    np.testing.assert_allclose(prototypes.values[0], [2.5, 0.5])


def test_a_class_that_nobody_reports_keeps_its_prototype() -> None:
    prototypes = Prototypes.empty(3, 2)
    prototypes.add(*ONE)
    prototypes.advance()
    prototypes.add(*TWO)
    moved = prototypes.advance()
    np.testing.assert_allclose(prototypes.values, [[4, 2], [0, 0], [4, 4]])
    assert moved == pytest.approx(2.0)


def test_a_prototype_of_a_class_without_samples_is_refused() -> None:
    with pytest.raises(BadUpdate, match="no sample"):
        check_owned(ONE[0], np.array([3, 0, 0]))


def test_narrower_embeddings_fill_their_columns() -> None:
    prototypes = Prototypes.empty(1, 3)
    prototypes.add(np.array([[1.0, 3.0]]), np.array([2]), columns=np.array([0, 2]))
    prototypes.add(np.array([[3.0, 5.0, 7.0]]), np.array([2]))
    prototypes.advance()
    np.testing.assert_allclose(prototypes.values, [[2, 5, 5]])


def test_noise_is_as_large_as_its_share_of_the_norm() -> None:
    given = np.array([[30.0, 40.0] * 500])
    noisy = disturbed(given, "noise", scale=0.1, rng=np.random.default_rng(0))
    assert np.std(noisy - given) == pytest.approx(0.1 * np.linalg.norm(given), rel=0.05)


def test_a_rotation_keeps_lengths_and_angles() -> None:
    given = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    turned = disturbed(given, "rotation", scale=0.0, rng=np.random.default_rng(0))
    assert not np.allclose(turned, given)
    np.testing.assert_allclose(turned @ turned.T, given @ given.T, atol=1e-4)
