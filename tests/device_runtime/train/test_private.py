"""Lots, noise and what a device says of them."""

import numpy as np
import pytest

from fedwright.device_runtime.train.private import Lots, StepPrivacy, hidden_by
from fedwright.protocol.artifact import TensorSpec
from fedwright.protocol.messages import Hidden, Hiding, Recipe


def test_each_sample_is_drawn_by_itself_with_the_chance_of_the_batch() -> None:
    lots = Lots(200, 20, bytes(32))
    drawn = [lots.draw()[0] for _ in range(2000)]
    counts = np.bincount(np.concatenate(drawn), minlength=200)
    sizes = np.array([len(rows) for rows in drawn])

    # 2000 lots of 200 with chance 0.1: mean 20, variance 18; each sample 200 times, give or take 13
    assert sizes.mean() == pytest.approx(20, abs=0.5)
    assert sizes.var() == pytest.approx(18, rel=0.12)
    assert counts.min() > 130
    assert counts.max() < 270


def test_a_lot_that_falls_on_nobody_is_a_step_of_noise_alone() -> None:
    lots = Lots(3, 1, bytes(32))
    empty = [weights for rows, weights in (lots.draw() for _ in range(200)) if not weights.sum()]

    # (2/3)^3 of all
    assert 30 < len(empty) < 90
    assert all(weights.tolist() == [0.0] for weights in empty)


def test_noise_has_the_size_that_was_asked_for_and_is_never_the_same() -> None:
    privacy = StepPrivacy(Hiding(clip=2.0, noise_multiplier=1.5), batch=16)
    spec = TensorSpec("noise/w", [300, 300])
    one, other = privacy.noise_for(spec), privacy.noise_for(spec)

    assert one.std() == pytest.approx(3.0, rel=0.02)
    assert one.dtype == np.float32
    assert not np.array_equal(one, other)
    assert privacy.scalars == {"clip": 2.0, "expected_batch": 16.0}


def test_a_device_says_what_it_did() -> None:
    recipe, hiding = Recipe(batch=16, learning_rate=0.1, seed=1), Hiding(2.0, 1.5)

    assert hidden_by(hiding, recipe, 160, 10) == Hidden(2.0, 1.5, 0.1, 10)
    assert hidden_by(hiding, recipe, 4, 3) == Hidden(2.0, 1.5, 1.0, 3)
    assert hidden_by(hiding, recipe, 0, 0) is None
