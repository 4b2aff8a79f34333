"""The broker that a server starts by itself: its port, its passwords, and the line for a device."""

import shlex
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from fedwright.cli.main import main
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import is_free
from fedwright.protocol.link.security import read_bundle
from fedwright.server_runtime.config import EMBEDDED, FleetSection
from fedwright.server_runtime.transport.own_broker import OwnBroker, own_broker, passwords_folder
from helpers.tools import require_tool

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who has started no broker yet."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def split(own: OwnBroker) -> tuple[str, list[str]]:
    """The password and the command of the line for a device."""
    assignment, *words = shlex.split(own.join)
    variable, _, password = assignment.partition("=")
    assert variable == "FEDWRIGHT_BROKER_PASSWORD"
    return password, words


def test_no_broker_named_means_its_own() -> None:
    assert FleetSection().broker == EMBEDDED


def test_a_device_gets_in_with_what_the_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwright.cli.device import config_of
    from fedwright.cli.main import build_parser

    with own_broker(FleetSection(port=free_port(), name="north"), tmp_path / "broker") as own:
        password, words = split(own)
        monkeypatch.setenv("FEDWRIGHT_BROKER_PASSWORD", password)
        config = config_of(build_parser("device").parse_args(words[1:]))
        connect(config.broker, client_id="pi", login=config.login).close()
        connect(own.url, client_id="server", login=own.login).close()

    assert (config.fleet, config.data) == ("north", "npz:data.npz")
    assert password not in own.summary + repr(own)
    assert own.join_file is not None
    assert own.join_file.read_text() == own.join + "\n"
    assert own.join_file.stat().st_mode & 0o777 == 0o600


def test_the_password_is_in_no_file_that_others_can_read(tmp_path: Path) -> None:
    with own_broker(FleetSection(port=free_port()), tmp_path / "broker") as own:
        password = split(own)[0].encode()
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        holders = [file for file in files if password in file.read_bytes()]

    assert holders
    assert {file.stat().st_mode & 0o777 for file in holders} == {0o600}


def test_a_server_that_starts_again_has_the_same_line_also_in_a_new_folder(tmp_path: Path) -> None:
    fleet = FleetSection(port=free_port())
    lines = []
    for folder in ("broker", "broker", "other"):
        with own_broker(fleet, tmp_path / folder) as own:
            lines.append(own.join)

    assert len(set(lines)) == 1
    assert passwords_folder("default").stat().st_mode & 0o777 == 0o700


def test_a_usual_port_that_is_taken_makes_way_for_the_next_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = free_port()
    monkeypatch.setitem(__import__("fedwright.protocol.address", fromlist=["PORTS"]).PORTS, "mqtt", first)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        with own_broker(FleetSection(), tmp_path / "broker") as own:
            port = int((tmp_path / "broker" / "port").read_text())
            assert own.summary.startswith(f"port {first} is in use by another program, so started ")
            assert f":{port} " in own.join
    with own_broker(FleetSection(), tmp_path / "broker") as again:
        assert again.join == own.join

    assert first < port
    assert is_free(port, everywhere=True)


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(LinkError, match=rf"^port {port} is in use; .* set another fleet\.port$"),
            own_broker(FleetSection(port=port), tmp_path / "broker"),
        ):
            pass


def test_two_servers_do_not_share_a_brokers_folder(tmp_path: Path) -> None:
    fleet = FleetSection(port=free_port())
    with (
        own_broker(fleet, tmp_path / "broker"),
        pytest.raises(ConfigError, match="another server is at work on the run in"),
        own_broker(fleet, tmp_path / "broker"),
    ):
        pass


def test_with_trust_it_lets_in_enrolled_devices_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_tool("mosquitto")
    monkeypatch.chdir(tmp_path)
    port = free_port()
    assert main(["server", "enroll", "pi-01", "--broker", f"mqtts://localhost:{port}"]) == 0
    fleet = replace(FleetSection(), trust="trust")

    with own_broker(fleet, tmp_path / "broker") as own:
        bundle = read_bundle(tmp_path / "trust" / "devices" / "pi-01")
        connect(bundle.info.broker, client_id="pi-01", tls=bundle.tls()).close()
        connect(own.url, client_id="server", tls=own.tls).close()
        with pytest.raises(LinkError):
            connect(own.url.replace("mqtts:", "mqtt:"), client_id="x")

    assert own.join == "fedwright device run --bundle FOLDER --data npz:data.npz"
    assert own.join_file is None
    assert "`fedwright server run` on this machine starts it" in capsys.readouterr().out
