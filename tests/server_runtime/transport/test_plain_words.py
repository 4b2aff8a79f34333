"""No device writes lines of its own into the server's log, or tells the terminal of its operator what to do."""

from pathlib import Path

import pytest
from msgspec import structs

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Message, Refusal
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard
from helpers.fleet import FLEET, Scripted, report

EVIL = "no\x1b[2Jmemory\r\nround 9/9 took 1 s, 3 updates\u202e"
SHOWN = "no?[2Jmemory??round 9/9 took 1 s, 3 updates?"


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (Refusal("t", "failed", EVIL, rule=EVIL), Refusal("t", "failed", SHOWN, rule=SHOWN)),
        (
            structs.replace(report(), agent=EVIL, board=structs.replace(report().board, model=EVIL)),
            structs.replace(report(), agent=SHOWN, board=structs.replace(report().board, model=SHOWN)),
        ),
        (report(), report()),
    ],
    ids=["refusal", "report", "honest report"],
)
def test_words_of_devices_are_one_printable_line(tmp_path: Path, said: Message, heard: Message) -> None:
    broker = MemoryBroker()
    channel = DeviceChannel(broker.link("server"), FLEET, blobs=BlobStore(tmp_path))
    device = Scripted(broker, "a")
    device.link.send(topics.up(FLEET, "a"), codec.encode(said, sender="a", boot=device.boot))

    [event] = channel.poll(0.0)

    assert isinstance(event, Heard)
    assert event.message == heard
