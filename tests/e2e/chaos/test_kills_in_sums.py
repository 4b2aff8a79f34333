"""Processes of a real fleet are killed while they add up changes: the run ends with the bytes of one in peace."""

import pytest

from fedwright.benchmarks.harness.chaos_fleet import Plan
from fedwright.benchmarks.suites.chaos import play

PLAN = Plan(rounds=2, epochs=1, secure=True)
# A server before and after each thing it must not forget, a device before and after it gave something away.
AT = (
    ("a", "sum answered"),
    ("server", "sum durable"),
    ("b", "sum asked"),
    ("server", "sum closing"),
)


@pytest.mark.broker
@pytest.mark.slow
def test_processes_that_are_killed_inside_sums_change_nothing() -> None:
    peace = play(PLAN)
    disturbed = play(PLAN, at=AT)

    assert [kill.moment for kill in disturbed.kills] == [moment for _, moment in AT]
    assert (disturbed.rounds, disturbed.lost, disturbed.twice) == (2, 0, 0)
    assert disturbed.digest == peace.digest
