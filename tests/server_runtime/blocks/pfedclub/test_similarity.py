"""CKA by hand, the embedding in which K-means is exact, and groups."""

import numpy as np
import pytest
import torch

from fedwright.server_runtime.blocks.pfedclub import similarity


def features(seed: int, width: int = 5, rows: int = 12) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    """<K_x, K_y> of two blocks' grams, which have norm 1."""
    one, other = similarity.unit_grams([x, y])
    return float((one * other).sum())


def test_cka_is_that_of_the_definition() -> None:
    x, y = features(1), features(2, width=3)
    centre = torch.eye(12) - torch.full((12, 12), 1 / 12)
    one, other = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    wanted = (one * other).sum() / (one.norm() * other.norm())
    assert linear_cka(x, y) == pytest.approx(float(wanted), abs=1e-5)


def test_cka_does_not_see_rotation_scale_and_shift() -> None:
    x = features(3)
    turn = torch.linalg.qr(features(4, width=5, rows=5))[0]
    assert linear_cka(x, 3.0 * x @ turn + 7.0) == pytest.approx(1.0, abs=1e-5)


def test_features_that_say_nothing_are_like_nothing() -> None:
    assert linear_cka(torch.ones(6, 4), features(5, rows=6)) == 0.0


def test_distances_of_the_embedding_are_those_of_the_paper() -> None:
    seams = [[features(s), features(s + 10, width=7), features(s + 20, width=2)] for s in (1, 2)]
    u = similarity.embed(seams)
    assert u.shape == (4, 2 * 12 * 12)
    blocks = [(model[i], model[i + 1]) for model in seams for i in (0, 1)]
    for i, (into, out) in enumerate(blocks):
        for j, (into2, out2) in enumerate(blocks):
            sim = linear_cka(into, into2) + linear_cka(out, out2)
            assert float((u[i] - u[j]).square().sum()) == pytest.approx(4 - 2 * sim, abs=1e-4)
            assert float(similarity.similarities(u)[i, j]) == pytest.approx(sim, abs=1e-4)


def test_blocks_that_do_alike_come_together() -> None:
    base = [features(30 + k, rows=16) for k in range(3)]
    rows = [base[k] + 0.01 * features(40 + n, rows=16) for n in range(4) for k in range(3)]
    u = similarity.embed([[row, row] for row in rows])
    groups = similarity.group(u, 3, seed=0).reshape(4, 3)
    assert (groups == groups[0]).all()
    assert len(set(groups[0].tolist())) == 3


def test_equal_blocks_make_fewer_groups_than_asked_for() -> None:
    same = features(6)
    groups = similarity.group(similarity.embed([[same, same], [same, same]]), 4, seed=0)
    assert groups.tolist() == [0, 0]


def test_places_of_a_map_are_averaged() -> None:
    x = torch.arange(24, dtype=torch.float32).reshape(1, 2, 3, 4)
    np.testing.assert_allclose(similarity.pooled(x).numpy(), [[5.5, 17.5]])
