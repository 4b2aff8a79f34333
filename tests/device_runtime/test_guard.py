"""Guards: training waits while the board is too hot, too empty or too busy, and ends when told to."""

import pytest

from fedwright.device_runtime.guard import LOOK_S, BoardState, Guard, Limits, board_state
from fedwright.protocol.errors import ConfigError
from helpers.present import present

LIMITS = Limits(most_temperature_c=80.0, least_battery_ratio=0.3, most_load_ratio=0.5)


class Board:
    """Says one state after another; time passes only while waiting."""

    def __init__(self, *states: BoardState) -> None:
        self.states = list(states)
        self.now_s = 0.0
        self.waits: list[float] = []

    def look(self) -> BoardState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    def guard(self, limits: Limits = LIMITS) -> Guard:
        return Guard(limits, self.look, clock=lambda: self.now_s, wait=self.wait)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        pytest.param(BoardState(temperature_c=81.0), "81 °C", id="hot"),
        pytest.param(BoardState(battery_ratio=0.2, on_battery=True), "battery at 20%", id="empty"),
        pytest.param(BoardState(load_ratio=0.7), "others use 70%", id="busy"),
    ],
)
def test_what_is_over_a_limit_is_said(state: BoardState, said: str) -> None:
    assert said in present(Board(state).guard().problem(state))


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(BoardState(), id="no sensors"),
        pytest.param(BoardState(temperature_c=79.0, battery_ratio=0.31, on_battery=True, load_ratio=0.4), id="inside"),
        pytest.param(BoardState(battery_ratio=0.1, on_battery=False), id="charging"),
    ],
)
def test_what_is_inside_the_limits_goes_on(state: BoardState) -> None:
    assert Board(state).guard().problem(state) is None


def test_training_pauses_until_the_board_has_cooled_well_below_the_limit() -> None:
    board = Board(*(BoardState(temperature_c=value) for value in (85.0, 82.0, 78.0, 74.0)))
    guard = board.guard()

    assert guard.watching(lambda: False)() is False

    # 82 is too hot, 78 is below the limit but not by five degrees, 74 is.
    assert board.waits == [LOOK_S] * 3
    assert (guard.pauses, guard.paused_s) == (1, 3 * LOOK_S)


def test_sensors_are_not_read_at_every_step() -> None:
    board = Board(BoardState(temperature_c=20.0), BoardState(temperature_c=99.0))
    may_stop = board.guard().watching(lambda: False)

    assert [may_stop() for _ in range(100)] == [False] * 100
    assert len(board.states) == 1
    assert board.waits == []


def test_a_paused_device_still_stops_when_told_to() -> None:
    board = Board(BoardState(temperature_c=99.0))
    answers = [False, False, True]
    may_stop = board.guard().watching(lambda: answers.pop(0) if len(answers) > 1 else answers[0])

    assert may_stop() is True


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Limits(least_battery_ratio=30.0)
    with pytest.raises(ConfigError, match="above 0"):
        Limits(most_load_ratio=0.0)


def test_this_machine_has_a_load() -> None:
    assert present(board_state(1).load_ratio) >= 0.0
