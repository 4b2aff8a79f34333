"""The broker's password on its way through the commands: never in the list of processes, a log or a kept config."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.cli.device import config_of
from fedwright.cli.main import build_parser, main
from fedwright.protocol.address import Login
from fedwright.server_runtime.config import FleetSection, RunConfig

SECRET = "open-sesame"
CONFIG = """
[run]
folder = "{folder}"
[fleet]
broker = "mqtt://fleet:{secret}@127.0.0.1:{port}"
join_timeout_s = 0.1
[method]
name = "fedavg"
"""


def device(*words: str, url: str = "mqtt://host:1883") -> list[str]:
    """Arguments of a device."""
    return ["device", "run", "--broker", url, "--data", "npz:data.npz", *words]


def test_a_password_in_the_url_leaves_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDWRIGHT_BROKER_PASSWORD", raising=False)

    config = config_of(build_parser("device").parse_args(device(url=f"mqtt://fleet:{SECRET}@host:1883")))

    assert config.broker == "mqtt://fleet@host:1883"
    assert config.login == Login("device", SECRET)
    assert SECRET not in repr(config)


def test_a_device_takes_the_password_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWRIGHT_BROKER_PASSWORD", SECRET)
    file = tmp_path / "password"
    file.write_text("of-file\n")
    parse = build_parser("device").parse_args

    assert config_of(parse(device())).login == Login("device", SECRET)
    assert config_of(parse(device("--password-file", str(file)))).login == Login("device", "of-file")


def test_a_password_in_the_url_is_gone_from_the_list_of_processes(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 2), np.float32), y=np.arange(8) % 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"mqtt://fleet:{SECRET}@127.0.0.1:{listener.getsockname()[1]}"
        words = [sys.executable, "-m", "fedwright", *device("--state", str(tmp_path), url=url)]
        with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            try:
                listener.settimeout(60)
                connection, _ = listener.accept()
                shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                # The device takes a broker that hangs up for one of an older version and asks again.
                connection.recv(4096)
                connection.close()
                again, _ = listener.accept()
                login = again.recv(4096)
                again.close()
            finally:
                process.kill()
            said = process.stderr.read()

    assert b"mqtt://fleet@127.0.0.1" in shown
    assert SECRET.encode() not in shown + said
    assert b"fleet" in login
    assert SECRET.encode() in login


def test_a_wrong_url_does_not_show_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(device(url=f"mqtt://fleet:{SECRET}@host:0")) == 1
    assert main(["server", "enroll", "pi", "--broker", f"mqtts://fleet:{SECRET}@host:8883"]) == 1

    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert "fleet:***@host" in said.err


def test_a_run_keeps_its_config_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedwright.cli import server

    kept: list[tuple[FleetSection, str]] = []

    def keep(config: RunConfig, text: str, *_: Any, **__: Any) -> int:
        kept.append((config.fleet, text))
        return 0

    monkeypatch.setattr(server, "_execute", keep)
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(folder=tmp_path / "runs", secret=SECRET, port=1883))

    assert main(["server", "run", str(file)]) == 0
    assert main(["server", "run", str(file), "--broker", "mqtt://other:1", "--password-file", "p"]) == 0
    assert main(["validate", str(file)]) == 0

    (own, text), (other, _) = kept
    assert own.broker == f"mqtt://fleet:{SECRET}@127.0.0.1:1883"
    assert 'broker = "mqtt://fleet:***@127.0.0.1:1883"' in text
    assert (other.broker, other.password_file) == ("mqtt://other:1", "p")
    assert SECRET not in text + capsys.readouterr().out


def test_a_resumed_run_asks_for_the_password_that_was_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDWRIGHT_BROKER_PASSWORD", raising=False)
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(folder=tmp_path / "runs", secret="***", port=1883))

    assert main(["server", "run", str(file)]) == 1

    assert "is not kept with the run; give it with --password-file or FEDWRIGHT_BROKER_PASSWORD" in (
        capsys.readouterr().err
    )
