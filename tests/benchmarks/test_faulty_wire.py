"""The wire of `bench chaos` reads MQTT packets as they are and mistreats messages only."""

from collections import Counter

import pytest

from fedwright.benchmarks.harness.faulty_wire import FAULTS, FaultyWire, number_at, payload_start
from fedwright.protocol import codec
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Chunk, Gone
from helpers.tools import require_tool

# QoS 1, 12 bytes: topic "up", packet id 7, one property of 3 bytes, payload "abc".
PACKET = bytes([0x32, 12, 0, 2]) + b"up" + bytes([0, 7, 2, 1, 0]) + b"abc"
GONE = codec.encode(Gone(), sender="a", boot="b")
CHUNK = codec.encode(Chunk("0" * 64, 0, memoryview(bytes(500))), sender="a", boot="b")


def test_the_payload_is_found_behind_topic_id_and_properties() -> None:
    assert number_at(bytes([0xFF, 0x7F]), 0) == (16383, 2)
    assert PACKET[payload_start(PACKET) :] == b"abc"


@pytest.mark.broker
def test_reliable_messages_all_arrive_and_damage_shows() -> None:
    require_tool("mosquitto")
    with Broker(kind="mosquitto") as broker:
        wire = FaultyWire("127.0.0.1", broker.port, seed=1, every=2)
        wire.start()
        reader, sender = (connect(url, client_id="x") for url in (broker.url, wire.url))
        reader.subscribe("up")
        for _ in range(100):
            sender.send("up", GONE)
            sender.send("up", CHUNK, reliable=False)
        sender.send("up", b"the end")
        found: Counter[str] = Counter()
        while found["end"] == 0 or found["Gone"] < 100:
            received = reader.receive(60.0)
            assert received is not None
            found[_kind(bytes(received.payload))] += 1
        sender.close()
        reader.close()
        wire.stop()

        assert set(wire.faults) == set(FAULTS)
        assert found["Gone"] >= 100
        assert found["damaged"] + found["garbage"] > 0


def _kind(payload: bytes) -> str:
    if payload == b"the end":
        return "end"
    try:
        body = codec.decode(payload).body
    except BadMessage:
        return "garbage"
    return "damaged" if isinstance(body, Chunk) and any(body.data) else type(body).__name__
