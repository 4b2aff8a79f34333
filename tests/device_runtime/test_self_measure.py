"""A device measures itself when it is asked to, has nothing to do, and is left in peace."""

import sys
from pathlib import Path

import pytest

from fedwright.device_runtime import owner_rules
from fedwright.device_runtime.policy import Policy
from fedwright.device_runtime.self_measure import LEAST_S, SelfMeasurement, measuring_command
from fedwright.protocol.link.memory import MemoryBroker
from helpers.fleet import Running

ENDS = [sys.executable, "-c", ""]
FAILS = [sys.executable, "-c", "raise SystemExit(3)"]


def wait(measurement: SelfMeasurement) -> None:
    """Until the process has ended."""
    assert measurement._child is not None
    measurement._child.wait(60)


def test_what_was_measured_is_reported_once() -> None:
    measurement = SelfMeasurement(ENDS, lambda: b"profile")
    measurement.want(0.0)

    assert not measurement.tend(idle=True)
    wait(measurement)
    assert measurement.tend(idle=True)
    assert measurement.found == b"profile"
    assert not measurement.tend(idle=True)


def test_nothing_is_measured_beside_a_task_and_it_is_done_afterwards() -> None:
    measurement = SelfMeasurement([sys.executable, "-c", "import time; time.sleep(600)"], lambda: b"profile")
    measurement.want(0.0)
    measurement.tend(idle=False)
    never = measurement._child
    measurement.tend(idle=True)
    first = measurement._child
    assert first is not None
    measurement.tend(idle=False)
    measurement.tend(idle=True)

    assert never is None
    assert first.returncode is not None
    assert measurement._child not in (None, first)
    measurement.close()


def test_a_server_that_asks_again_and_again_is_heard_once_in_a_while() -> None:
    measurement = SelfMeasurement(ENDS, lambda: b"profile")
    for now_s in (0.0, 1.0):
        measurement.want(now_s)
        measurement.tend(idle=True)
        if measurement._child is not None:
            wait(measurement)
            measurement.tend(idle=True)
    measurement.want(LEAST_S - 1)

    assert not measurement.tend(idle=True)
    assert measurement._child is None
    measurement.want(LEAST_S)
    measurement.tend(idle=True)
    wait(measurement)


def test_a_measurement_that_fails_is_said_to_have_failed(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    measurement = SelfMeasurement(FAILS, lambda: b"old", log_file=tmp_path / "profile.log")
    measurement.want(0.0)
    measurement.tend(idle=True)
    wait(measurement)

    assert not measurement.tend(idle=True)
    assert "exit code 3" in caplog.text


def test_a_device_without_a_command_measures_nothing() -> None:
    measurement = SelfMeasurement()
    measurement.want(0.0)

    assert not measurement.tend(idle=True)


@pytest.mark.parametrize("allowed", [True, False], ids=["within", "outside"])
def test_a_device_measures_itself_only_in_its_owners_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    monkeypatch.setattr(owner_rules, "minute_of_day", lambda: 23 * 60 if allowed else 12 * 60)
    owner = owner_rules.OwnerRules(Policy(hours=("22:00-06:00",)), tmp_path)
    device = Running(MemoryBroker(), "a", tmp_path, owner=owner)
    device.stop()

    assert device.resources.may_measure() == allowed


def test_the_command_keeps_the_profile_with_the_state(tmp_path: Path) -> None:
    words = measuring_command(tmp_path, threads=0, provider="cpu")

    assert words[2:5] == ["fedwright", "device", "profile"]
    assert words[words.index("--state") + 1] == str(tmp_path)
