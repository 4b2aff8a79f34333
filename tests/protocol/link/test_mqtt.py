"""The mqtt link and the broker process beyond the common contract."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from fedwright.protocol.address import parse_url
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.link import TlsFiles, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.mqtt import MqttLink
from fedwright.protocol.link.security import BrokerTls
from helpers.links import wait_until

_PARENT = """
import sys
from fedwright.protocol.link.broker import Broker
broker = Broker(kind=sys.argv[1]).start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mqtt://pi.local", "mqtt://pi.local:1883"),
        ("mqtts://pi.local", "mqtts://pi.local:8883"),
        ("mqtt://10.0.0.1:99", "mqtt://10.0.0.1:99"),
    ],
)
def test_urls_have_default_ports(url: str, shown: str) -> None:
    assert str(parse_url(url)) == shown


@pytest.mark.parametrize(
    "url", ["pi.local", "http://pi.local", "mqtt://", "mqtt://h:0", "mqtt://h:x", "mqtt://h:99999"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="broker address"):
        connect(url, client_id="x")


def test_no_broker_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        with pytest.raises(LinkError) as caught:
            connect(f"mqtt://127.0.0.1:{port}", client_id="x")

    assert str(caught.value) == (
        f"no broker at mqtt://127.0.0.1:{port} (connection refused); start one or check --broker"
    )


def test_unknown_host_is_one_sentence() -> None:
    with pytest.raises(LinkError, match=re.escape("no broker at mqtt://nowhere.invalid:1883 (unknown host)")):
        connect("mqtt://nowhere.invalid", client_id="x")


def test_a_listener_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwright.protocol.link.mqtt.CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(LinkError, match="timed out"):
        connect(f"mqtt://127.0.0.1:{mute.getsockname()[1]}", client_id="x")


def test_missing_tls_files_are_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ConfigError, match=r"ca\.pem"):
        connect(f"mqtts://127.0.0.1:{server.getsockname()[1]}", client_id="x", tls=TlsFiles(tmp_path / "ca.pem"))


@pytest.mark.broker
@pytest.mark.parametrize(("kind", "version"), [("mosquitto", 5), ("amqtt", 4)])
def test_mqtt_5_is_used_when_offered(kind: str, version: int) -> None:
    with Broker(kind="mosquitto" if kind == "mosquitto" else "amqtt") as broker:
        link = connect(broker.url, client_id="x", will=("w", b"x"))
        link.close()

    assert isinstance(link, MqttLink)
    assert link.version == version


@pytest.mark.broker
def test_sending_never_waits_for_the_network() -> None:
    with Broker() as broker:
        link = connect(broker.url, client_id="x")
        os.kill(broker.pid, signal.SIGSTOP)
        done = threading.Event()

        def send() -> None:
            for _ in range(200):
                link.send("t", bytes(256 * 1024))
            done.set()

        threading.Thread(target=send, daemon=True).start()
        finished = done.wait(120)
        os.kill(broker.pid, signal.SIGCONT)
        link.close()

    assert finished


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_the_broker_dies_with_its_parent(kind: str) -> None:
    command = [sys.executable, "-c", _PARENT, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()

    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.broker
def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LinkError, match=f"port {port} is in use"):
            Broker(port=port).start()


@pytest.mark.broker
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"

    with pytest.raises(LinkError, match=r"mosquitto did not start.*absent\.pem"):
        Broker(tls=BrokerTls(absent, absent, absent, absent)).start()


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_restart_keeps_the_port(kind: str) -> None:
    with Broker(kind="mosquitto" if kind == "mosquitto" else "amqtt") as broker:
        before = (broker.url, broker.pid)
        broker.kill()
        broker.restart()

        assert broker.url == before[0]
        assert broker.pid != before[1]
        connect(broker.url, client_id="x").close()


@pytest.mark.parametrize("granted", [True, False], ids=["subscribed", "ended before that"])
@pytest.mark.parametrize("nodes", ["a:1,b:2", "a:1"], ids=["several nodes", "one"])
def test_a_cluster_that_lets_a_known_client_in_no_more_is_met_as_another_client(
    nodes: str, granted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = MqttLink(parse_url(f"mqtt://{nodes}"), client_id="pi", will=None, tls=TlsFiles(), version=4)
    client = link._client
    monkeypatch.setattr(client, "subscribe", lambda *_, **__: (0, 7))
    link.connects, link._patterns = 1, ["fleet/#"]
    before = client._client_id
    link._on_connect(client, None, None, ReasonCode(PacketTypes.CONNACK, "Success"), None)
    if_granted = [7][: int(granted)]
    for mid in if_granted:
        link._on_subscribe(client, None, mid, None, None)

    link._on_disconnect(client, None, None, ReasonCode(PacketTypes.DISCONNECT, "Unspecified error"), None)

    assert (client._client_id == before) == (granted or "," not in nodes)
    assert client._client_id.startswith(b"pi-")
