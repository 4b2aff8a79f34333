"""Real processes and SIGKILL at seeded moments; the long form is `fedwright bench chaos --kills N`."""

import pytest

from fedwright.benchmarks.suites.chaos import play
from helpers.tools import require_tool


@pytest.mark.broker
@pytest.mark.slow
def test_kills_at_random_moments_change_nothing() -> None:
    require_tool("mosquitto")
    peace = play(kills=0, seed=0, rounds=4)
    disturbed = play(kills=4, seed=3, rounds=4)

    assert sum(disturbed.kills.values()) > 0
    assert (disturbed.rounds, disturbed.lost, disturbed.twice) == (4, 0, 0)
    assert disturbed.digest == peace.digest
