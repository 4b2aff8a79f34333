"""The learning rate of every round, compared with torch's schedulers and by hand."""

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.rate_schedule import RateSchedule

ROUNDS = 12


def torch_rates(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(ROUNDS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (RateSchedule(), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (RateSchedule("step", every=4, factor=0.1), lambda o: lr_scheduler.StepLR(o, 4, gamma=0.1)),
        (RateSchedule("exponential", factor=0.99), lambda o: lr_scheduler.ExponentialLR(o, gamma=0.99)),
        (RateSchedule("cosine", lowest_ratio=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS, eta_min=0.1)),
        (RateSchedule("cosine", rounds=20), lambda o: lr_scheduler.CosineAnnealingLR(o, 20)),
    ],
    ids=["constant", "step", "exponential", "cosine", "cosine of its own length"],
)
def test_rates_are_those_of_torch(schedule: RateSchedule, make: Any) -> None:
    found = [schedule.ratio(number, ROUNDS) for number in range(1, ROUNDS + 1)]

    assert found == pytest.approx(torch_rates(make))


@pytest.mark.parametrize("kind", ["constant", "step", "exponential", "cosine"])
def test_a_warm_up_rises_evenly_and_the_schedule_begins_behind_it(kind: Any) -> None:
    warm = RateSchedule(kind, every=2, warmup_rounds=3)
    plain = RateSchedule(kind, every=2)

    assert [warm.ratio(number, 9) for number in (1, 2, 3)] == [0.25, 0.5, 0.75]
    assert [warm.ratio(number + 3, 9) for number in range(1, 7)] == [plain.ratio(number, 6) for number in range(1, 7)]


def test_a_rate_stays_above_its_lowest_and_where_a_cosine_has_ended() -> None:
    assert RateSchedule("step", every=1, factor=0.1, lowest_ratio=0.05).ratio(9, 10) == 0.05
    assert RateSchedule("cosine", rounds=4).ratio(9, 10) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"every": 0}, {"factor": 0.0}, {"factor": 1.5}, {"warmup_rounds": -1}, {"rounds": 0}]
)
def test_wrong_values_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="schedule." + next(iter(wrong))):
        RateSchedule(**wrong)
