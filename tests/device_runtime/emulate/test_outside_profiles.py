"""Profiles and fleets of other packages, and those in a file of one's own."""

import logging
import sys
from pathlib import Path

import pytest

from fedwright.device_runtime.emulate.fleet import device_ids
from fedwright.device_runtime.emulate.profiles import load_fleet, load_profile, names, package_of
from fedwright.protocol.errors import ConfigError
from helpers.outside_package import PLUG_INS, example, install, installed, shown_files

__all__ = ["example", "installed"]

FILES = shown_files(PLUG_INS)
THERMOSTAT = FILES["my_package/boards/devices/thermostat.toml"]
HOUSE = FILES["my_package/boards/fleets/house.toml"]


def test_profiles_of_a_package_are_used_without_importing_it(example: Path) -> None:
    assert "thermostat" in names("devices")
    assert "house" in names("fleets")
    assert (package_of("devices", "thermostat"), package_of("devices", "laptop")) == ("my-package", "fedwright")
    assert load_profile("thermostat").memory_bytes == 48_000_000
    assert list(load_fleet("house").profiles()) == ["thermostat"] * 3 + ["laptop"]
    assert "my_package" not in sys.modules


def test_a_fleet_and_its_profiles_may_be_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "mine.toml").write_text(THERMOSTAT)
    (tmp_path / "boards" / "fleet.toml").write_text(HOUSE.replace('"thermostat"', '"mine.toml"'))
    monkeypatch.chdir(tmp_path)

    profiles = list(load_fleet("boards/fleet.toml").profiles())

    assert profiles == ["boards/mine.toml"] * 3 + ["laptop"]
    assert load_profile(profiles[0]).summary == "a thermostat with 64 MB"
    assert [device for device, _ in device_ids(profiles)] == ["thermo-1", "thermo-2", "thermo-3", "laptop-1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"profile absent.toml cannot be read \(.*No such file"),
        ("short = ", r"profile absent.toml cannot be read \(Invalid value"),
        ('colour = "red"', r"profile absent.toml has the unknown key 'colour'"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for content in filter(None, [text]):
        (tmp_path / "absent.toml").write_text(content)

    with pytest.raises(ConfigError, match=said):
        load_profile("absent.toml")


def test_a_name_of_ours_stays_ours(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {"their_boards/devices/laptop.toml": THERMOSTAT}
    install(installed, "their-boards", {"fedwright.profiles": {"any": "their_boards"}}, files)

    with caplog.at_level(logging.WARNING):
        assert load_profile("laptop").short == "laptop"
        assert load_profile("laptop").short == "laptop"

    [said] = caplog.messages
    assert said.startswith("profile devices/laptop of the package their-boards is not used: fedwright has one")


def test_a_package_without_its_folder_is_said_and_left_out(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(installed, "hollow", {"fedwright.profiles": {"any": "hollow.boards"}}, {"hollow/__init__.py": ""})

    with caplog.at_level(logging.WARNING):
        assert "laptop" in names("devices")

    [said] = caplog.messages
    assert said.startswith("profile folder 'any' of the package hollow: there is no folder hollow.boards; ")
