"""The systemd unit: what it says, where it goes, and that its command line means the same config."""

import os
import pwd
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.device import config_of
from fedwright.cli.main import build_parser
from fedwright.device_runtime import service
from fedwright.device_runtime.config import AgentConfig
from fedwright.protocol.address import Login
from fedwright.protocol.errors import ConfigError, DeviceError


@pytest.fixture(autouse=True)
def installed_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with the `fedwright` command in it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fedwright").write_text("#!/bin/sh\n")
    (tmp_path / "bin/fedwright").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin/python"))


def config(tmp_path: Path, **changes: Any) -> AgentConfig:
    fields = {"broker": "mqtts://host:8883", "device": "pi-07", "data": f"npz:{tmp_path}/my data.npz?classes=10"}
    return AgentConfig(**{**fields, "state": tmp_path / "state", **changes})


def line(text: str, key: str) -> str:
    return next(row.partition("=")[2] for row in text.splitlines() if row.startswith(key + "="))


@pytest.mark.parametrize("nice", [0, 5, 19])
def test_the_command_line_gives_the_same_config_again(tmp_path: Path, nice: int) -> None:
    wanted = config(
        tmp_path,
        fleet="north",
        threads=2,
        provider="auto",
        holdout_ratio=0.1,
        profile="pi-4",
        trains=False,
        once=True,
        hide_counts=True,
        round_s=12.5,
        round_mb=3.0,
        nice=nice,
        bundle=tmp_path / "bundle",
    )
    unit = service.make_unit(wanted, system=False)

    words = shlex.split(line(unit.text, "ExecStart"))
    args = build_parser("device").parse_args(words[1:])

    assert words[0] == str(tmp_path / "bin/fedwright")
    assert config_of(args) == wanted


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unit = service.make_unit(config(tmp_path, data="d.npz", state=Path("s"), bundle=Path("bundle")), system=False)
    command = line(unit.text, "ExecStart")
    assert f"npz:{tmp_path}/d.npz" in command
    assert f"--state {tmp_path}/s " in command
    assert f"--bundle {tmp_path}/bundle" in command


def test_a_system_unit_is_shut_in_and_comes_back(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    unit = service.make_unit(config(tmp_path), system=True, user=me)
    assert unit.path == Path("/etc/systemd/system/fedwright-default-pi-07.service")
    assert line(unit.text, "Restart") == "always"
    assert line(unit.text, "User") == me
    assert line(unit.text, "ProtectSystem") == "strict"
    assert line(unit.text, "ReadWritePaths") == f"-{tmp_path}/state"
    assert line(unit.text, "WantedBy") == "multi-user.target"


def test_a_user_unit_goes_to_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    unit = service.make_unit(config(tmp_path), system=False)
    service.install(unit)
    assert unit.path == tmp_path / ".config/systemd/user/fedwright-default-pi-07.service"
    assert unit.path.read_text() == unit.text
    assert "User=" not in unit.text
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_python_source_keeps_its_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/srv/my code")
    assert (
        line(service.make_unit(config(tmp_path, data="python:mine:rows"), system=False).text, "Environment")
        == '"PYTHONPATH=/srv/my code"'
    )
    assert "Environment" not in service.make_unit(config(tmp_path), system=False).text


def test_a_python_source_in_the_current_folder_is_found_by_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "folder").mkdir()

    for source in ("python:mine:rows", "python:folder.rows:read"):
        unit = service.make_unit(config(tmp_path, data=source), system=False)
        assert line(unit.text, "Environment") == f"PYTHONPATH={tmp_path}"
    assert "Environment" not in service.make_unit(config(tmp_path, data="python:installed:rows"), system=False).text
    monkeypatch.setenv("PYTHONPATH", "/srv/code")
    unit = service.make_unit(config(tmp_path, data="python:mine:rows"), system=False)
    assert line(unit.text, "Environment") == f"PYTHONPATH={tmp_path}:/srv/code"


@pytest.mark.parametrize(
    ("word", "written"),
    [("plain", "plain"), ("a b", '"a b"'), ("50%", "50%%"), ("$HOME", "$$HOME"), ('q"q', '"q\\"q"'), ("", '""')],
)
def test_words_are_quoted_for_systemd(word: str, written: str) -> None:
    assert service.quoted(word) == written


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="line break"):
        service.make_unit(config(tmp_path, profile="a\nExecStartPre=evil"), system=False)
    with pytest.raises(ConfigError, match="device id"):
        service.make_unit(config(tmp_path, device="a/b"), system=False)
    with pytest.raises(ConfigError, match="no user 'no-such-user-here'"):
        service.make_unit(config(tmp_path), system=True, user="no-such-user-here")
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="cannot write"):
        service.install(service.make_unit(config(tmp_path), system=False, unit_dir=tmp_path / "file"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="no command"):
        service.make_unit(config(tmp_path), system=False)


def test_a_password_goes_into_a_file_of_its_own(tmp_path: Path) -> None:
    unit = service.make_unit(
        config(tmp_path, login=Login("device", "secret")), system=False, unit_dir=tmp_path / "units"
    )

    service.install(unit)

    [secret] = (tmp_path / "units").glob("*.env")
    assert line(unit.text, "EnvironmentFile") == str(secret)
    assert secret.read_text() == "FEDWRIGHT_BROKER_PASSWORD=secret\n"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "secret" not in unit.text + repr(unit)


def test_a_password_file_is_read_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "fleet.password"
    file.write_text("secret\n")
    wanted = config(tmp_path, login=Login("device", "secret"), password_file=file)

    unit = service.make_unit(wanted, system=False, unit_dir=tmp_path / "units")
    service.install(unit)

    args = build_parser("device").parse_args(shlex.split(line(unit.text, "ExecStart"))[1:])
    assert config_of(args) == wanted
    assert list((tmp_path / "units").glob("*.env")) == []
