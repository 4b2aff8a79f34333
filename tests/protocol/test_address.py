"""A broker's address: what is read from it, and that its password is shown nowhere."""

import socket
from argparse import Namespace
from pathlib import Path

import psutil
import pytest

from fedwright.protocol import address
from fedwright.protocol.address import Address, Login, find_login, mask, outward_host, parse_url, split_password
from fedwright.protocol.errors import ConfigError


def test_user_and_password_are_read_and_the_password_is_not_shown() -> None:
    found = parse_url("mqtt://fleet:a%40b%3Ac@pi.local")

    assert found == Address("pi.local", 1883, False, "fleet", "a@b:c")
    assert str(found) == "mqtt://fleet:***@pi.local:1883"
    assert "a@b" not in repr(found)


def test_several_nodes_share_one_login() -> None:
    found = parse_url("mqtts://u:p@a:1,b,[fd00::2]:3")

    assert found.nodes == (("a", 1), ("b", 8883), ("fd00::2", 3))
    assert (found.user, found.password, found.secure) == ("u", "p", True)
    assert str(found) == "mqtts://u:***@a:1,b:8883,[fd00::2]:3"
    assert parse_url(found.plain()).nodes == found.nodes


@pytest.mark.parametrize(
    "url", ["mqtt://a,", "mqtt://a,:1", "mqtt://a:1,b:0", "mqtt://a:1,b:x", "mqtt://" + "a," * 16 + "a"]
)
def test_a_list_of_nodes_has_no_gaps(url: str) -> None:
    with pytest.raises(ConfigError, match="broker address"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "plain", "password"),
    [
        ("mqtt://u:p@h:1", "mqtt://u@h:1", "p"),
        ("mqtt://u:p@q@h:1", "mqtt://u@h:1", "p@q"),
        ("mqtts://:p@[fd00::2]:8883", "mqtts://[fd00::2]:8883", "p"),
        ("mqtt://u@h:1", "mqtt://u@h:1", None),
        ("mqtt://u:***@h:1", "mqtt://u@h:1", None),
        ("mqtt://u:p@h:1,i:2", "mqtt://u@h:1,i:2", "p"),
        ("embedded", "embedded", None),
    ],
    ids=["both", "at in password", "IPv6", "no password", "hidden before", "several nodes", "no URL"],
)
def test_a_password_is_taken_out_of_a_url(url: str, plain: str, password: str | None) -> None:
    assert split_password(url) == (plain, password)


def test_texts_are_masked_wherever_an_address_stands_in_them() -> None:
    text = 'broker = "mqtt://u:secret@h:1"  # not mqtts://x:se@cret@y\nnone = "mqtt://u@h"\n'

    assert mask(text) == 'broker = "mqtt://u:***@h:1"  # not mqtts://x:***@y\nnone = "mqtt://u@h"\n'


@pytest.mark.parametrize("url", ["http://u:secret@h", "mqtt://u:secret@h:0", "mqtt://u:secret@h:x"])
def test_errors_do_not_show_the_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"u:\*\*\*@h") as caught:
        parse_url(url)

    assert "secret" not in str(caught.value)


def test_a_file_counts_before_the_url_and_the_url_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of-file\n")
    environment = {"FEDWRIGHT_BROKER_PASSWORD": "of-environment"}

    assert find_login("of-url", file, user="u", environment=environment) == Login("u", "of-file")
    assert find_login("of-url", user="u", environment=environment) == Login("u", "of-url")
    assert find_login(None, user="u", environment=environment) == Login("u", "of-environment")
    assert find_login(None, user="u", environment={}) is None
    assert "of-" not in repr(find_login(None, user="u", environment=environment))


def test_the_user_may_come_from_the_environment() -> None:
    environment = {"FEDWRIGHT_BROKER_PASSWORD": "p", "FEDWRIGHT_BROKER_USER": "site"}

    assert find_login(None, user="device", environment=environment) == Login("site", "p")


@pytest.mark.parametrize("text", [None, "", "two\nlines\n"], ids=["missing", "empty", "two lines"])
def test_a_password_file_that_cannot_be_used_is_named(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)

    with pytest.raises(ConfigError, match=r"the password file .*password"):
        find_login(None, file, user="u")


def test_the_outward_address_is_one_of_this_machine() -> None:
    host = outward_host()

    with socket.socket() as sock:
        sock.bind((host, 0))


@pytest.fixture
def no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing may be connected to the limited broadcast address without asking for it, as without any route.
    monkeypatch.setattr(address, "_ELSEWHERE", ("255.255.255.255", 9))
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: Namespace(isup=name != "eth0") for name in INTERFACES})


INTERFACES = {
    "lo": [Namespace(family=socket.AF_INET, address="127.0.0.1")],
    "eth0": [Namespace(family=socket.AF_INET, address="10.77.0.9")],
    "eth1": [
        Namespace(family=socket.AF_INET6, address="fe80::1"),
        Namespace(family=socket.AF_INET, address="10.77.0.1"),
    ],
}


@pytest.mark.usefixtures("no_route")
def test_in_a_network_without_a_way_out_it_is_an_interfaces_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: INTERFACES)

    assert outward_host() == "10.77.0.1"


@pytest.mark.usefixtures("no_route")
def test_without_a_network_the_outward_address_is_the_machines_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": INTERFACES["lo"]})

    assert outward_host() == (socket.gethostname() or "localhost")
