"""Blobs over a real broker that dies, links that corrupt, and receivers that start anew."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwright.protocol.blobs import BlobStore, Download
from fedwright.protocol.uploads import Uploads
from helpers.links import MqttBench
from helpers.transfer import pull, serving

pytestmark = pytest.mark.broker
SIZE_BYTES = 12_000_000
COUNT = 46


@pytest.fixture(params=["mosquitto", "amqtt"])
def bench(request: pytest.FixtureRequest) -> Iterator[MqttBench]:
    made = MqttBench(request.param)
    yield made
    made.close()


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(BlobStore(tmp_path / "sender"))


def test_a_transfer_survives_the_death_of_the_broker(bench: MqttBench, uploads: Uploads, tmp_path: Path) -> None:
    data = os.urandom(SIZE_BYTES)
    download = Download(BlobStore(tmp_path / "receiver"), uploads.offer(data))
    receiver = bench.link("receiver")
    receiver.subscribe("blob/chunk")

    def kill_in_the_middle(count: int) -> None:
        if count == 15:
            bench.kill()
            bench.restart()

    with serving(bench.link("sender"), uploads):
        accepted = pull(receiver, download, on_chunk=kill_in_the_middle)

    assert receiver.connects == 2
    assert sorted(accepted) == list(range(COUNT))
    assert download.finish().read_bytes() == data


def test_a_new_receiver_goes_on_where_the_old_one_died(bench: MqttBench, uploads: Uploads, tmp_path: Path) -> None:
    data = os.urandom(SIZE_BYTES)
    ref = uploads.offer(data)
    receiver = bench.link("receiver")
    receiver.subscribe("blob/chunk")

    with serving(bench.link("sender"), uploads):
        first = pull(receiver, Download(BlobStore(tmp_path / "receiver"), ref), stop_after=20)
        receiver.close()
        again = bench.link("receiver")
        again.subscribe("blob/chunk")
        download = Download(BlobStore(tmp_path / "receiver"), ref)
        second = pull(again, download)

    assert len(first) == 20
    assert sorted(first + second) == list(range(COUNT))
    assert download.finish().read_bytes() == data
