"""Tuning of several members at once: schedule, held-out rows, goals; and sums with learned weights."""

from typing import Any

import numpy as np
import pytest
import torch

from fedwright.server_runtime.blocks.fedconv.learned_weights import Weighing, divergences, equalised, penalty
from fedwright.server_runtime.blocks.joint_tuning import Examples, Goal, Schedule, TunedModel, flat, tune, unflat
from helpers.present import present


def examples(targets: list[float]) -> Examples:
    """As many rows as targets; the last two are held out."""
    rows = len(targets)
    return Examples(torch.zeros(rows, 1), None, torch.arange(rows - 2), torch.arange(rows - 2, rows))


def constant(targets: list[float]) -> TunedModel:
    """A model that says the same number of every row, which should be these."""
    goal = Goal(examples(targets), torch.tensor(targets)[:, None])
    return TunedModel(lambda weights, x: (weights["c"] + torch.zeros(len(x), 1),), goal)


def test_every_member_keeps_its_own_best_epoch() -> None:
    # What the first learns is wrong on its held-out rows, what the second learns is right.
    members = [constant([1, 1, 1, 1, 0, 0]), constant([1, 1, 1, 1, 1, 1])]
    theta = tune(
        torch.zeros(2, 1), lambda t: [{"c": row} for row in t], members, schedule=Schedule(4, 4, high=0.2), seed=0
    )
    assert theta[0].item() == 0.0
    assert theta[1].item() > 0.3


def test_tuning_is_adam_on_the_sum_of_all_losses() -> None:
    members = [constant([1, 2, 3, 4, 1, 2]), constant([4, 3, 2, 1, 1, 2])]
    rows = torch.arange(4)

    def build(theta: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        # The second weight is in no model's formula, and the third is nobody's to learn.
        return [{"c": row[:1] * row[1:2], "idle": row[1:], "still": torch.ones(1)} for row in theta]

    def extra(theta: torch.Tensor) -> torch.Tensor:
        return 0.1 * theta.square().sum()

    start = torch.tensor([[0.5, 1.0], [1.0, -0.5]])
    found = tune(start, build, members, schedule=Schedule(1, 4, high=0.01), seed=0, extra=extra)
    theta = start.clone().requires_grad_()
    losses = [m.goal.loss(m.forward(w, torch.zeros(4, 1)), rows) for w, m in zip(build(theta), members, strict=True)]
    (torch.stack(losses).sum() + extra(theta)).backward()
    torch.optim.Adam([theta], lr=0.01).step()
    torch.testing.assert_close(found, theta.detach())


def test_the_rate_goes_down_and_up_again() -> None:
    rates = [Schedule(20).rate(epoch) for epoch in range(9)]
    assert rates[0] == rates[8] == pytest.approx(1e-3)
    assert rates[4] == pytest.approx(1e-5)
    assert rates[2] == pytest.approx((1e-3 + 1e-5) / 2)
    # torch's own schedule left running beyond its period
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=1e-5)
    for rate in rates:
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        optimizer.step()
        theirs.step()


def test_held_out_rows_are_never_learned_from() -> None:
    found = Examples.of(np.zeros((10, 2), np.float32), np.arange(10), holdout=0.3, seed=1, device="cpu")
    assert len(found.held) == 3
    assert sorted([*found.fit.tolist(), *found.held.tolist()]) == list(range(10))


def test_flat_weights_come_back() -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7.0)}
    back = unflat(flat(weights), weights)
    assert flat(weights).shape == (1, 7)
    torch.testing.assert_close(back["a"], weights["a"])
    torch.testing.assert_close(back["b"], weights["b"])


def weighing(granularity: Any) -> Weighing:
    """Two devices with three and one samples, on a base of tens."""
    parts = [{"w": torch.full((2, 2), 4.0), "b": torch.full((2,), 8.0)}, {"w": torch.zeros(2, 2), "b": torch.zeros(2)}]
    base = {"w": torch.full((2, 2), 10.0), "b": torch.full((2,), 10.0)}
    return Weighing.of(parts, [3, 1], base=base, granularity=granularity)


@pytest.mark.parametrize(("granularity", "count"), [("layer", 4), ("channel", 8), ("element", 12)])
def test_weights_start_as_the_plain_mean(granularity: str, count: int) -> None:
    found = weighing(granularity)
    assert found.start().shape == (1, count)
    made = found.model(found.start())
    torch.testing.assert_close(made["w"], torch.full((2, 2), 13.0))
    torch.testing.assert_close(made["b"], torch.full((2,), 16.0))


def test_a_channels_weight_moves_its_row() -> None:
    found = weighing("channel")
    v = found.start()
    v[0, 1] = 2.0  # the first device's second row of w
    torch.testing.assert_close(found.model(v)["w"], torch.tensor([[13.0, 13.0], [16.0, 16.0]]))
    # means over rows: (1 + 2) / 2 in w and 1 in b
    torch.testing.assert_close(found.means(v), torch.tensor([1.25, 1.0]))


def test_divergence_is_a_distance() -> None:
    one = {"w": torch.tensor([0.0, 0.0])}
    other = {"w": torch.tensor([0.0, float(np.log(3))])}
    # p = (1/2, 1/2), q = (1/4, 3/4): Σ (p - q) log(p / q) = ln 2 / 4 - ln(2/3) / 4 = ln 3 / 4
    torch.testing.assert_close(divergences([one, other], one), torch.tensor([0.0, float(np.log(3)) / 4]))


def test_weight_given_to_far_models_costs() -> None:
    found = weighing("layer")
    v = found.start().requires_grad_()
    penalty(found, v, torch.tensor([1.0, 0.0])).backward()
    assert (present(v.grad)[0, [0, 2]] > 0).all()
    assert (present(v.grad)[0, [1, 3]] < 0).all()


def test_equal_scales_before_the_sum() -> None:
    parts = equalised([{"w": torch.tensor([3.0, -3.0])}, {"w": torch.tensor([1.0, 1.0])}], [1, 1])
    torch.testing.assert_close(parts[0]["w"], torch.tensor([2.0, -2.0]))
    torch.testing.assert_close(parts[1]["w"], torch.tensor([2.0, 2.0]))
