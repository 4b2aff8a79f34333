"""A resumed server and a device that was in the middle of fetching: the blob is not lost, only not offered yet."""

from pathlib import Path

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Get, Lost
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from helpers.fleet import FLEET, Scripted


def test_only_a_blob_that_is_gone_is_called_lost(tmp_path: Path) -> None:
    broker = MemoryBroker()
    blobs = BlobStore(tmp_path)
    here, gone = blobs.put_bytes(b"weights of a round that is open"), "0" * 64
    channel = DeviceChannel(broker.link("server"), FLEET, blobs=blobs)
    device = Scripted(broker, "a")
    for sha256 in (here, gone):
        device.link.send(topics.up(FLEET, "a"), codec.encode(Get(sha256, [0]), sender="a", boot=device.boot))

    channel.poll(0.0)

    assert device.hear(Lost) == Lost(gone)
