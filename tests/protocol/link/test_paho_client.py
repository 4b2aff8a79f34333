"""The client without copies reads and writes the same bytes as paho's own, however they are cut on their way."""

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from fedwright.protocol.link import Received, connect, paho_client
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.paho_client import AHEAD_BYTES, LARGE_BYTES, LeanClient, split_publish
from helpers.links import take
from helpers.present import present

V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
VERSIONS = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


class Wire:
    """A client whose broker is the other end of a pair of sockets."""

    def __init__(self, version: MQTTProtocolVersion) -> None:
        self.got: list[tuple[str, bytes | bytearray, int]] = []
        self.client = LeanClient(
            CallbackAPIVersion.VERSION2,
            client_id="x",
            protocol=version,
            on_unreliable=lambda topic, payload: self.got.append((topic, bytes(payload), 0)),
        )
        self.client.on_message = lambda _client, _data, message: self.got.append(
            (message.topic, message.payload, message.qos)
        )
        self.far = socket.socket()
        self.connect()

    def connect(self) -> None:
        """Connect, or connect again."""
        self.far.close()
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.client._sock = near

    def read(self) -> None:
        """Read as paho's loop does: while the system has bytes."""
        while select.select([present(self.client._sock)], [], [], 0)[0]:
            assert self.client.loop_read() == MQTTErrorCode.MQTT_ERR_SUCCESS

    def close(self) -> None:
        self.client._sock_close()
        self.far.close()


@pytest.fixture
def wire(version: MQTTProtocolVersion) -> Iterator[Wire]:
    made = Wire(version)
    yield made
    made.close()


def packet(topic: str, payload: bytes, qos: int, version: MQTTProtocolVersion) -> bytes:
    """A PUBLISH as the standard lays it out; in MQTT 5 with a message expiry of 60 s among its properties."""
    name = topic.encode()
    body = struct.pack("!H", len(name)) + name
    body += struct.pack("!H", 7) if qos else b""
    body += b"\x05\x02\0\0\0\x3c" if version == V5 else b""
    body += payload
    length = bytearray()
    left = len(body)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return bytes([0x30 | qos << 1, *length, left]) + body


@given(
    version=st.sampled_from([V311, V5]),
    messages=st.lists(
        st.tuples(
            st.sampled_from(["t", "fleet/up/pi-1"]),
            st.sampled_from([0, 1, 5, AHEAD_BYTES, LARGE_BYTES, LARGE_BYTES + 1, 100_000]),
            st.sampled_from([0, 1]),
        ),
        min_size=1,
        max_size=6,
    ),
    cuts=st.lists(st.integers(1, 50_000), max_size=8),
)
def test_messages_arrive_whole_however_they_are_cut(
    version: MQTTProtocolVersion, messages: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    sent = [(topic, bytes([number]) * size, qos) for number, (topic, size, qos) in enumerate(messages)]
    stream = b"".join(packet(*message, version) for message in sent)
    wire = Wire(version)

    for cut in [*cuts, *[60_000] * (len(stream) // 60_000 + 1)]:
        wire.far.sendall(stream[:cut])
        stream = stream[cut:]
        wire.read()
    wire.close()

    assert wire.got == sent


@VERSIONS
def test_what_came_at_once_is_read_at_once(wire: Wire, version: MQTTProtocolVersion) -> None:
    wire.far.sendall(b"".join(packet("t", b"%d" % number, number % 2, version) for number in range(20)))

    wire.client.loop_read()

    assert wire.got == [("t", b"%d" % number, number % 2) for number in range(20)]


@VERSIONS
def test_the_bytes_sent_are_those_of_paho(version: MQTTProtocolVersion) -> None:
    head, tail = b"head", bytes(range(256)) * 4096
    sent = []
    ways: list[Callable[[LeanClient], object]] = [
        lambda client: client.publish_parts("a/b", head, memoryview(tail)),
        lambda client: client.publish("a/b", head + tail, qos=0),
    ]
    for publish in ways:
        wire = Wire(version)
        # A message that does not fit into the system's buffers goes out in many parts.
        cast(socket.socket, wire.client._sock).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        wire.far.setblocking(False)
        publish(wire.client)
        received = bytearray()
        while wire.client.want_write():
            received += wire.far.recv(10_000)
            wire.client.loop_write()
        while len(received) < len(tail):
            received += wire.far.recv(10_000)
        sent.append(bytes(received))
        wire.close()

    assert sent[0] == sent[1]


def test_nothing_is_queued_without_a_connection() -> None:
    wire = Wire(V5)
    wire.close()

    wire.client.publish_parts("t", b"head", b"tail")

    assert not wire.client.want_write()


@pytest.mark.parametrize(
    ("body", "five"),
    [
        (b"\0", False),
        (b"\0\x05abcd", False),
        (b"\xff\xff" + b"x" * 100, True),
        (b"\0\1a", True),
        (b"\0\1a\x03\0\0", True),
        (b"\0\1a\xff\xff\xff\xff\xff", True),
        (b"\0\1\xff\0", True),
    ],
    ids=["no length", "topic", "long topic", "no properties", "properties", "endless length", "not utf-8"],
)
def test_lengths_that_do_not_fit_are_refused(body: bytes, five: bool) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_publish(memoryview(body), five=five)


def test_a_broken_packet_ends_the_connection_and_nothing_of_it_is_read_in_the_next() -> None:
    with closing(Wire(V5)) as wire:
        wire.far.sendall(b"\x30\x03\0\x09a" + packet("t", b"of the old", 0, V5))

        assert wire.client.loop_read() == MQTTErrorCode.MQTT_ERR_PROTOCOL
        assert wire.client.socket() is None

        wire.connect()
        wire.far.sendall(packet("t", b"of the new", 0, V5))
        wire.read()

        assert wire.got == [("t", b"of the new", 0)]


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    with closing(Wire(V5)) as wire:
        wire.far.sendall(b"\x30" + data)
        wire.far.close()

        results = [wire.client.loop_read() for _ in range(len(data) + 2)]

    assert results[-1] != MQTTErrorCode.MQTT_ERR_SUCCESS


@pytest.mark.broker
def test_a_paho_without_the_hooks_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paho_client, "HOOKS", (*paho_client.HOOKS, "a hook that is gone"))
    monkeypatch.setattr(LeanClient, "_incoming", lambda self, size: pytest.fail("a hook was used"))
    with Broker() as broker:
        sender, receiver = connect(broker.url, client_id="a"), connect(broker.url, client_id="b")
        receiver.subscribe("t")

        sender.send("t", b"head", tail=bytes(300_000), reliable=False)
        got = take(receiver, 1)
        sender.close()
        receiver.close()

    assert got == [Received("t", b"head" + bytes(300_000))]
