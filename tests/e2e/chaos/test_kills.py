"""Real processes and SIGKILL at seeded moments; the long form is `fedwright bench chaos --kills N`."""

import pytest

from fedwright.benchmarks.harness.chaos_fleet import Plan
from fedwright.benchmarks.suites.chaos import VICTIMS, play
from helpers.tools import require_tool


@pytest.mark.broker
@pytest.mark.slow
def test_kills_at_random_moments_change_nothing() -> None:
    require_tool("mosquitto")
    peace = play(Plan(rounds=4))
    disturbed = play(Plan(rounds=4, faulty=3), dict.fromkeys(VICTIMS[:4], 1), seed=3)

    assert disturbed.kills
    assert sum(disturbed.faults.values()) > 0
    assert (disturbed.rounds, disturbed.lost, disturbed.twice) == (4, 0, 0)
    assert disturbed.digest == peace.digest
