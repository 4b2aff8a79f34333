"""How many devices are waited for, counted by hand."""

from fedwright.server_runtime.fleet.attendance import Attendance

HERE = ("a", "b", "c")


def test_without_a_least_number_all_are_waited_for() -> None:
    attendance = Attendance()
    attendance.turn_away("liar")
    assert attendance.needed(4, HERE, least=None) == 4


def test_a_device_that_was_turned_away_is_not_waited_for() -> None:
    attendance = Attendance()
    attendance.turn_away("liar")
    attendance.turn_away("liar")
    assert attendance.needed(4, HERE, least=2) == 3


def test_it_is_waited_for_again_once_it_came_with_fitting_data() -> None:
    attendance = Attendance()
    attendance.turn_away("liar")
    attendance.welcome("liar")
    assert attendance.needed(4, HERE, least=2) == 4


def test_a_crowd_of_strangers_does_not_get_below_the_quorum() -> None:
    attendance = Attendance()
    for number in range(100):
        attendance.turn_away(f"stranger-{number}")
    assert attendance.needed(10, HERE, least=5) == 5


def test_who_was_waited_for_in_vain_is_not_waited_for_again_until_all_are_back() -> None:
    attendance = Attendance()
    attendance.give_up(4, HERE)
    assert attendance.needed(4, HERE, least=2) == 3
    assert attendance.needed(4, (*HERE, "d"), least=2) == 4
    assert attendance.needed(4, HERE, least=2) == 4
