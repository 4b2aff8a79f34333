"""The bad stretch of network, and links that cross it."""

import gc
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedwright.protocol.blobs import BlobStore, Download
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.link import Received, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.shaping import Proxy, Shape
from fedwright.protocol.uploads import Uploads
from helpers.links import take, wait_until
from helpers.tools import require_tool
from helpers.transfer import pull, serving


@pytest.fixture
def broker() -> Iterator[Broker]:
    require_tool("mosquitto")
    with Broker(kind="mosquitto") as running:
        yield running


@pytest.mark.parametrize(
    "shape", [{"bytes_per_s": 0}, {"bytes_per_s": -1.0}, {"delay_s": -0.1}, {"loss_ratio": 1.0}], ids=str
)
def test_impossible_shapes_are_refused(shape: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Shape(**shape)


def test_bytes_pass_unchanged_and_late() -> None:
    data = os.urandom(40_000)
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy("127.0.0.1", server.getsockname()[1]) as proxy:
        proxy.reshape(Shape(bytes_per_s=200_000, delay_s=0.1))
        with socket.create_connection(("127.0.0.1", proxy.port)) as near, server.accept()[0] as far:
            started_s = time.monotonic()
            near.sendall(data)
            received = b""
            while len(received) < len(data):
                received += far.recv(65_536)
            took_s = time.monotonic() - started_s

    assert received == data
    assert took_s > 0.29


def test_lost_packets_come_later_and_ever_later() -> None:
    shape = Shape(delay_s=0.25, loss_ratio=0.1)

    # Ten packets pass together with 0.9^10 = 0.35: lost, lost again, then through; 0.5 s and 1 s of waiting.
    draws = iter([0.9, 0.5, 0.2])
    assert shape.resend_s(14_600, lambda: next(draws)) == pytest.approx(1.5)
    assert shape.resend_s(14_600, lambda: 0.3) == 0.0
    assert Shape().resend_s(10**9, lambda: 1.0) == 0.0


def test_a_target_that_is_away_closes_the_connection() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with Proxy("127.0.0.1", closed.getsockname()[1]) as proxy, pytest.raises(LinkError):
            connect(proxy.url, client_id="x")


def test_a_connection_that_waits_for_its_target_ends_with_the_proxy() -> None:
    with ExitStack() as stack:
        target = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            # Nobody accepts them: further connections are not answered.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(target.getsockname())
        proxy = Proxy("127.0.0.1", target.getsockname()[1]).start()
        near = [stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port))) for _ in range(3)]
        near[0].sendall(b"hello")

        proxy.stop()
        del proxy
        # A connection that was forgotten shows as a ResourceWarning here.
        gc.collect()

        assert [_ends(connection) for connection in near] == [True] * 3


def _ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.broker
def test_reliable_messages_wait_on_both_sides_of_a_cut(broker: Broker) -> None:
    with (
        Proxy("127.0.0.1", broker.port) as proxy,
        closing(connect(proxy.url, client_id="device")) as device,
        closing(connect(broker.url, client_id="server")) as server,
    ):
        device.subscribe("down")
        server.subscribe("up")

        proxy.cut()
        wait_until(lambda: not device.connected)
        server.send("down", b"while you were away")
        device.send("up", b"kept for you")
        proxy.mend()

        assert take(device, 1) == [Received("down", b"while you were away")]
        assert take(server, 1) == [Received("up", b"kept for you")]
        wait_until(lambda: device.connects == 2)
        assert server.connects == 1


@pytest.mark.broker
def test_a_blob_crosses_a_slow_link_without_being_sent_twice(broker: Broker, tmp_path: Path) -> None:
    data = os.urandom(1_500_000)
    uploads = Uploads(BlobStore(tmp_path / "sender"))
    with (
        Proxy("127.0.0.1", broker.port, Shape(bytes_per_s=1_000_000, delay_s=0.05)) as proxy,
        closing(connect(broker.url, client_id="sender")) as sender,
        closing(connect(proxy.url, client_id="receiver")) as receiver,
    ):
        receiver.subscribe("blob/chunk")
        download = Download(BlobStore(tmp_path / "receiver"), uploads.offer(data))
        with serving(sender, uploads):
            pull(receiver, download)

    assert download.duplicates == 0
    assert download.finish().read_bytes() == data


@pytest.mark.broker
def test_a_blob_crosses_a_link_that_is_cut_again_and_again(broker: Broker, tmp_path: Path) -> None:
    data = os.urandom(12_000_000)
    uploads = Uploads(BlobStore(tmp_path / "sender"))
    with (
        Proxy("127.0.0.1", broker.port) as proxy,
        closing(connect(broker.url, client_id="sender")) as sender,
        closing(connect(proxy.url, client_id="receiver")) as receiver,
    ):
        receiver.subscribe("blob/chunk")
        download = Download(BlobStore(tmp_path / "receiver"), uploads.offer(data))

        def cut_every_tenth(count: int) -> None:
            if count % 10 == 0:
                proxy.cut()
                wait_until(lambda: not receiver.connected)
                proxy.mend()

        with serving(sender, uploads):
            accepted = pull(receiver, download, on_chunk=cut_every_tenth)

    # Chunks that were already here may outlast the last cut.
    assert receiver.connects >= 3
    assert sorted(accepted) == list(range(46))
    assert download.finish().read_bytes() == data
