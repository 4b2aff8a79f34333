"""Who is who: restarts of one device against two devices with one id."""

from fedwright.server_runtime.fleet.registry import CHALLENGE_S, Registry
from helpers.fleet import report


def test_a_first_report_joins_and_a_repeated_one_changes_nothing() -> None:
    registry = Registry()
    assert registry.hear("a", "boot1", report(), now_s=0) == "joined"
    assert registry.hear("a", "boot1", report(free_bytes=5), now_s=1) == "known"
    assert registry.present()["a"].free_bytes == 5


def test_a_device_that_restarts_after_its_connection_broke_joins_at_once() -> None:
    registry = Registry()
    registry.hear("a", "boot1", report(), now_s=0)
    assert registry.lose("a", "boot1") is True
    assert registry.present() == {}
    assert registry.hear("a", "boot2", report(), now_s=1) == "joined"
    assert registry.boot("a") == "boot2"


def test_a_newcomer_takes_the_place_of_a_boot_that_stays_silent() -> None:
    registry = Registry()
    registry.hear("a", "boot1", report(), now_s=0)
    assert registry.hear("a", "boot2", report(), now_s=1) == "contested"
    assert registry.settle(now_s=1 + CHALLENGE_S - 0.1) == []
    assert registry.boot("a") == "boot1"
    assert registry.settle(now_s=1 + CHALLENGE_S) == ["a"]
    assert registry.boot("a") == "boot2"


def test_a_newcomer_is_turned_away_when_the_old_boot_answers() -> None:
    registry = Registry()
    registry.hear("a", "boot1", report(), now_s=0)
    registry.hear("a", "boot2", report(), now_s=1)
    assert registry.newcomer_boot("a") == "boot2"
    assert registry.hear("a", "boot2", report(), now_s=1.1) == "known"
    assert registry.hear("a", "boot1", report(), now_s=1.2) == "taken"
    assert registry.settle(now_s=100) == []
    assert registry.boot("a") == "boot1"


def test_the_last_will_of_an_old_boot_does_not_remove_the_new_one() -> None:
    registry = Registry()
    registry.hear("a", "boot1", report(), now_s=0)
    registry.lose("a", "boot1")
    registry.hear("a", "boot2", report(), now_s=1)
    assert registry.lose("a", "boot1") is False
    assert list(registry.present()) == ["a"]


def test_a_contest_ends_when_the_old_connection_turns_out_to_be_gone() -> None:
    registry = Registry()
    registry.hear("a", "boot1", report(), now_s=0)
    registry.hear("a", "boot2", report(), now_s=1)
    registry.lose("a", "boot1")
    assert registry.hear("a", "boot2", report(), now_s=1.5) == "joined"


def test_a_device_that_was_away_and_returns_under_the_same_boot_joins_again() -> None:
    registry = Registry()
    registry.hear("a", "boot1", report(), now_s=0)
    registry.lose("a", "boot1")
    assert registry.hear("a", "boot1", report(), now_s=1) == "joined"
