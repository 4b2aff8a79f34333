"""Emulated devices whose link is shaped and whose plug is pulled; small programs stand for the agent."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.emulate.mishaps import Mishaps
from fedwright.device_runtime.emulate.profiles import ProfileValue, load_profile
from fedwright.protocol.errors import ConfigError
from helpers.links import wait_until
from helpers.present import present

FOREVER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EmulatedFleet]:
    with EmulatedFleet(tmp_path / "logs") as made:
        yield made


def value(number: float) -> ProfileValue:
    return ProfileValue(number, "nominal", "this test")


def test_a_profile_with_a_link_goes_through_a_proxy_and_says_so(fleet: EmulatedFleet) -> None:
    phone = load_profile("phone")

    url = fleet.link("phone", phone, "mqtt://127.0.0.1:1883")
    fleet.start("phone", phone, FOREVER)
    outcome = fleet.stop()["phone"]

    assert url.startswith("mqtt://127.0.0.1:")
    assert url != "mqtt://127.0.0.1:1883"
    assert outcome.enforced.link_mechanism == "TCP proxy"
    assert (present(outcome.enforced.link).bytes_per_s, present(outcome.enforced.link).delay_s) == (1_500_000, 0.03)


def test_a_profile_without_a_link_is_left_alone(fleet: EmulatedFleet) -> None:
    assert fleet.link("pc", "pc", "mqtt://127.0.0.1:1883") == "mqtt://127.0.0.1:1883"
    fleet.start("pc", "pc", FOREVER)

    assert fleet.stop()["pc"].enforced.link is None


def test_a_link_that_cannot_be_shaped_is_refused(fleet: EmulatedFleet) -> None:
    with pytest.raises(ConfigError, match="mqtt:// broker"):
        fleet.link("phone", "phone", "mqtts://127.0.0.1:8883")


def test_a_pulled_plug_kills_and_plugging_in_starts_the_same_again(fleet: EmulatedFleet) -> None:
    first = fleet.start("pi", "raspberry-pi-4", FOREVER)

    fleet.pull_plug("pi")
    second = fleet.plug_in("pi")

    assert present(first.outcome).exit_code == -signal.SIGKILL
    assert (second.command, second.profile) == (first.command, first.profile)
    assert second.pid != first.pid
    assert fleet.stop()["pi"].enforced.plug_pulls == 1


def test_mishaps_come_from_the_profile_and_pass(fleet: EmulatedFleet) -> None:
    frail = replace(load_profile("pc"), up_s=value(0.05), away_s=value(0.05))
    fleet.start("frail", frail, FOREVER)
    steady = fleet.start("steady", "pc", FOREVER)

    with Mishaps(fleet, seed=1) as mishaps:
        wait_until(lambda: len(mishaps.pulled) >= 2)

    assert set(mishaps.pulled) == {"frail"}
    assert steady.poll() is None
