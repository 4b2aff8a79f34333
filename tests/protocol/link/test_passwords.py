"""A broker that asks for passwords: who gets in, and what they may do there."""

import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.address import Login
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker, PortTaken
from fedwright.protocol.link.passwords import USERS, kept_passwords
from helpers.links import wait_until

WAIT_S = 10.0


def test_passwords_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    first, second = kept_passwords(tmp_path / "kept"), kept_passwords(tmp_path / "kept")

    assert first.users == second.users
    assert len(set(first.users.values())) == len(USERS) == 3
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "kept").iterdir()} == {0o600}
    assert first.users["device"] not in repr(first)
    assert kept_passwords(tmp_path / "others").users != first.users


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="passwords cannot be kept in"):
        kept_passwords(tmp_path / "file" / "below")


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_who_has_the_password_gets_in_and_a_device_speaks_upwards_only(kind: Any, tmp_path: Path) -> None:
    passwords = kept_passwords(tmp_path / "passwords")
    with Broker(kind=kind, folder=tmp_path, passwords=passwords) as broker:
        for login in (None, Login("device", "wrong"), Login("server", passwords.users["device"])):
            with pytest.raises(LinkError, match=r"turned us away .* check the password") as caught:
                connect(broker.url, client_id="x", login=login)
            assert passwords.users["device"] not in str(caught.value)
        server, device, eavesdropper = (
            connect(broker.url, client_id=user, login=Login(user, passwords.users[user]))
            for user in ("server", "device", "device")
        )
        server.subscribe("fedwright/default/#")
        device.subscribe("fedwright/default/down/pi")
        eavesdropper.subscribe("fedwright/default/up/+")
        device.send("fedwright/default/down/pi", b"as if from the server")
        device.send("fedwright/default/up/pi", b"report")
        first = server.receive(WAIT_S)
        server.send("fedwright/default/down/pi", b"task")
        received = device.receive(WAIT_S)
        overheard = eavesdropper.receive(0.2)
        for link in (server, device, eavesdropper):
            link.close()

    assert first is not None
    assert (first.topic, bytes(first.payload)) == ("fedwright/default/up/pi", b"report")
    assert received is not None
    assert bytes(received.payload) == b"task"
    assert overheard is None


@pytest.mark.broker
def test_it_listens_on_the_machines_other_addresses_and_a_taken_port_is_said(tmp_path: Path) -> None:
    passwords = kept_passwords(tmp_path / "passwords")
    with Broker(folder=tmp_path, passwords=passwords) as broker:
        # All of 127/8 is this machine; a broker on the loopback address alone would refuse.
        socket.create_connection(("127.0.0.2", broker.port), timeout=WAIT_S).close()
        with pytest.raises(PortTaken, match=f"port {broker.port} is in use"):
            Broker(port=broker.port, passwords=passwords).start()


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_a_link_says_when_the_broker_goes_and_comes(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fedwright.protocol.link.mqtt")
    passwords = kept_passwords(tmp_path / "passwords")
    news: list[bool] = []
    with Broker(kind=kind, folder=tmp_path, passwords=passwords) as broker:
        url = broker.url.replace("mqtt://", f"mqtt://device:{passwords.users['device']}@")
        link = connect(url, client_id="pi", watch=news.append)
        broker.restart()
        wait_until(lambda: news == [False, True])
        link.close()

    lines = [record.getMessage() for record in caplog.records]
    where = broker.url.replace("mqtt://", "mqtt://device:***@")
    assert news == [False, True]
    assert len(lines) == 2
    assert lines[0].startswith(f"the broker at {where} is gone; trying until it is back")
    assert lines[1].startswith(f"the broker at {where} is back after ")
