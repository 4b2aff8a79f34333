"""How many devices are waited for, counted by hand."""

from fedwright.server_runtime.fleet.attendance import Attendance

HERE = ("a", "b", "c")


def test_a_device_that_was_turned_away_does_not_count() -> None:
    attendance = Attendance()
    attendance.turn_away("liar")
    assert attendance.is_spoilt
    assert attendance.needed(4, HERE) == 4


def test_nothing_is_spoilt_once_it_came_with_fitting_data() -> None:
    attendance = Attendance()
    attendance.turn_away("liar")
    attendance.welcome("liar")
    assert not attendance.is_spoilt


def test_who_was_waited_for_in_vain_is_not_waited_for_again_until_all_are_back() -> None:
    attendance = Attendance()
    attendance.give_up(4, HERE)
    assert attendance.needed(4, HERE) == 3
    assert attendance.needed(4, (*HERE, "d")) == 4
    assert attendance.needed(4, HERE) == 4
