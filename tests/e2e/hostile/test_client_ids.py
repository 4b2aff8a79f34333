"""An enrolled device that connects under the client ids of others, against the broker that enrolment configures."""

import queue
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from fedwright.protocol import topics
from fedwright.protocol.link import Received, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.security import Bundle, read_bundle
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.trust import enroll, enroll_server
from helpers.links import WAIT_S, closed_broker, take, wait_until

pytestmark = pytest.mark.broker
FLEET = "home"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[Broker]:
    with closed_broker(authority, FLEET) as running:
        yield running


def bundle_of(broker: Broker, authority: Authority, folder: Path, *, name: str) -> Bundle:
    return read_bundle(enroll(authority, name, fleet=FLEET, broker=broker.url, folder=folder / name))


def intruder(broker: Broker, bundle: Bundle, client_id: str, stack: ExitStack) -> paho.Client:
    """A client with a certificate of its own that says it were another, and keeps its session."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
    client.tls_set(str(bundle.ca), str(bundle.cert), str(bundle.key))
    there: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.on_connect = lambda *rest: there.put(rest)
    client.reconnect_delay_set(600, 600)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    # paho leaves the pair of sockets that wakes its thread to the collector.
    stack.callback(client._reset_sockets)
    stack.callback(client.loop_stop)
    stack.callback(client.disconnect)
    there.get(timeout=WAIT_S)
    return client


def client_id_of(link: Any) -> str:
    """What the link told the broker."""
    return str(link._client._client_id.decode())


@pytest.mark.parametrize("victim", ["pi-1", "server"])
def test_nobody_is_thrown_out_by_one_who_knows_its_client_id(
    broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path, victim: str
) -> None:
    tls = enroll_server(authority) if victim == "server" else bundle_of(broker, authority, tmp_path, name=victim).tls()
    link = stack.enter_context(closing(connect(broker.url, client_id=victim, tls=tls)))
    own = topics.probe(victim) if victim != "server" else topics.down(FLEET, "nobody")
    link.subscribe(own)
    spy = bundle_of(broker, authority, tmp_path, name=f"spy-of-{victim}")
    heard: list[str] = []
    for name in (client_id_of(link), victim):
        other = intruder(broker, spy, name, stack)
        other.on_message = lambda client, data, message: heard.append(message.topic)
        other.subscribe(own, qos=1)
        other.publish(own, b"forged", qos=1).wait_for_publish(WAIT_S)

    link.send(own, b"still here")

    assert take(link, 1) == [Received(own, b"still here")]
    assert (link.connects, heard) == (1, [])


def test_one_certificate_has_one_session_at_the_broker(
    broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path
) -> None:
    greedy = bundle_of(broker, authority, tmp_path, name="greedy")
    gone: queue.SimpleQueue[int] = queue.SimpleQueue()
    clients = []
    for number in range(4):
        client = intruder(broker, greedy, f"greedy-{number}", stack)
        client.on_disconnect = lambda *rest, number=number: gone.put(number)
        clients.append(client)

    # Each client hears it in a thread of its own.
    assert {gone.get(timeout=WAIT_S) for _ in range(3)} == {0, 1, 2}
    wait_until(lambda: [client.is_connected() for client in clients] == [False, False, False, True])
