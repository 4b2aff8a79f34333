"""A closed fleet on a real mosquitto: certificates decide who comes in, the access list who speaks where."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedwright.device_runtime.profiler.link import measure_link
from fedwright.protocol import topics
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import Link, Received, TlsFiles, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.security import read_bundle
from fedwright.server_runtime.fleet.authority import Authority, Credentials
from fedwright.server_runtime.fleet.trust import enroll, enroll_server
from helpers.links import closed_broker, take

pytestmark = pytest.mark.broker
FLEET = "home"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[Broker]:
    with closed_broker(authority, FLEET) as running:
        yield running


def as_server(broker: Broker, authority: Authority, stack: ExitStack) -> Link:
    return stack.enter_context(closing(connect(broker.url, client_id="server", tls=enroll_server(authority))))


def as_device(broker: Broker, authority: Authority, stack: ExitStack, folder: Path, *, name: str) -> Link:
    bundle = read_bundle(enroll(authority, name, fleet=FLEET, broker=broker.url, folder=folder / name))
    link = connect(bundle.info.broker, client_id=name, tls=bundle.tls())
    return stack.enter_context(closing(link))


def test_large_chunks_pass_through_tls(broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path) -> None:
    server = as_server(broker, authority, stack)
    server.subscribe(topics.up_all(FLEET))
    device = as_device(broker, authority, stack, tmp_path, name="pi-large")
    tails = [bytes([number]) * 1_000_000 for number in range(8)]

    for tail in tails:
        device.send(topics.up(FLEET, "pi-large"), b"chunk", tail=memoryview(tail), reliable=False)

    assert [message.payload for message in take(server, 8)] == [b"chunk" + tail for tail in tails]


def test_server_and_devices_hear_each_other(
    broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path
) -> None:
    server = as_server(broker, authority, stack)
    server.subscribe(topics.up_all(FLEET))
    device = as_device(broker, authority, stack, tmp_path, name="pi-1")
    device.subscribe(topics.down(FLEET, "pi-1"))
    device.subscribe(topics.shared(FLEET))

    device.send(topics.up(FLEET, "pi-1"), b"report")
    server.send(topics.down(FLEET, "pi-1"), b"task")
    server.send(topics.shared(FLEET), b"challenge")

    assert take(server, 1) == [Received(topics.up(FLEET, "pi-1"), b"report")]
    assert {message.payload for message in take(device, 2)} == {b"task", b"challenge"}


def test_a_device_cannot_speak_or_hear_for_another(
    broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path
) -> None:
    server = as_server(broker, authority, stack)
    server.subscribe("#")
    spy = as_device(broker, authority, stack, tmp_path, name="spy")
    for pattern in ("#", topics.down(FLEET, "pi-1"), topics.up_all(FLEET), topics.down(FLEET, "spy")):
        spy.subscribe(pattern)

    for topic in (topics.up(FLEET, "pi-1"), topics.down(FLEET, "pi-1"), topics.shared(FLEET), "elsewhere"):
        spy.send(topic, b"forged")
    spy.send(topics.up(FLEET, "spy"), b"own")
    heard_by_server = take(server, 1)
    server.send(topics.down(FLEET, "pi-1"), b"secret")
    server.send(topics.down(FLEET, "spy"), b"for spy")

    assert heard_by_server == [Received(topics.up(FLEET, "spy"), b"own")]
    assert take(spy, 1) == [Received(topics.down(FLEET, "spy"), b"for spy")]


def test_nobody_comes_in_without_a_certificate(broker: Broker, authority: Authority) -> None:
    with pytest.raises(LinkError, match="TLS with the broker"):
        connect(broker.url, client_id="stranger", tls=TlsFiles(authority.ca))


def test_a_certificate_of_another_authority_does_not_help(broker: Broker, authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    forged = other.issue_device("pi-1", tmp_path / "forged")

    with pytest.raises(LinkError, match="TLS with the broker"):
        connect(broker.url, client_id="pi-1", tls=TlsFiles(authority.ca, forged.cert, forged.key))


def test_the_certificate_of_the_broker_opens_nothing(broker: Broker, authority: Authority) -> None:
    stolen = Credentials(authority.folder / "broker" / "cert.pem", authority.folder / "broker" / "key.pem")

    with pytest.raises(LinkError, match="TLS with the broker"):
        connect(broker.url, client_id="x", tls=TlsFiles(authority.ca, stolen.cert, stolen.key))


def test_a_device_does_not_talk_to_a_stranger_for_a_broker(
    broker: Broker, authority: Authority, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other")
    own = authority.issue_device("pi-9", tmp_path / "pi-9")

    with pytest.raises(LinkError, match="its certificate is not trusted"):
        connect(broker.url, client_id="pi-9", tls=TlsFiles(other.ca, own.cert, own.key))
    with pytest.raises(LinkError, match="its certificate is not trusted"):
        connect(
            broker.url.replace("127.0.0.1", "localhost"),
            client_id="pi-9",
            tls=TlsFiles(authority.ca, own.cert, own.key),
        )


def test_plain_mqtt_is_not_answered(broker: Broker) -> None:
    with pytest.raises(LinkError):
        connect(broker.url.replace("mqtts", "mqtt"), client_id="x")


def test_an_enrolled_device_measures_its_link(broker: Broker, authority: Authority, tmp_path: Path) -> None:
    bundle = read_bundle(enroll(authority, "pi-far", fleet=FLEET, broker=broker.url, folder=tmp_path / "pi-far"))

    found = measure_link(bundle.info.broker, device="pi-far", tls=bundle.tls())

    assert 0 < found["round_trip_s"] < 10
    assert found["bytes_per_s"] > 0


def test_a_device_hears_no_other_devices_probe(
    broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path
) -> None:
    spy = as_device(broker, authority, stack, tmp_path, name="spy-2")
    for topic in (topics.probe("pi-near"), topics.probe("spy-2")):
        spy.subscribe(topic)
    other = as_device(broker, authority, stack, tmp_path, name="pi-near")

    spy.send(topics.probe("pi-near"), b"forged")
    other.send(topics.probe("pi-near"), b"own")
    spy.send(topics.probe("spy-2"), b"mine")

    assert take(spy, 1) == [Received(topics.probe("spy-2"), b"mine")]
