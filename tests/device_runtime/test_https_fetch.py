"""Blobs fetched beside the broker: by ranges, over TLS that is checked, and over the broker when that fails."""

import itertools
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedwright.device_runtime.downloads import MOST_VAIN, Downloads
from fedwright.device_runtime.https_fetch import HttpsFetcher
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.messages import Chunk, Get, Located
from fedwright.server_runtime.fleet.authority import Authority
from helpers.links import wait_until

CHUNK = 1024
DATA = b"".join(bytes([number]) * CHUNK for number in range(10)) + b"tail"
REF = make_ref(DATA, chunk_bytes=CHUNK, inline=False)


class Store:
    """An object store with one object; answers: what to do with a request instead of giving what it asks for."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self.ranges: list[str] = []
        self.answers: list[Callable[[BaseHTTPRequestHandler], None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.ranges.append(self.headers["Range"])
                if outer.answers:
                    outer.answers.pop(0)(self)
                else:
                    give(self, DATA[slice(*asked(self))], 206)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}/blob?signature=1"


def chunk(index: int) -> Chunk:
    """One chunk as it would come over the broker."""
    return Chunk(REF.sha256, index, memoryview(DATA)[index * CHUNK : (index + 1) * CHUNK])


def asked(request: BaseHTTPRequestHandler) -> tuple[int, int]:
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
    assert found is not None
    return int(found[1]), int(found[2]) + 1


def give(request: BaseHTTPRequestHandler, data: bytes, status: int, *, promised: int | None = None) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(data) if promised is None else promised))
    request.end_headers()
    request.wfile.write(data)


@contextmanager
def serving(store: Store) -> Iterator[Store]:
    thread = threading.Thread(target=store.server.serve_forever)
    thread.start()
    try:
        yield store
    finally:
        store.server.shutdown()
        thread.join()
        store.server.server_close()


@pytest.fixture
def store() -> Iterator[Store]:
    with serving(Store()) as running:
        yield running


class Device:
    """Downloads whose server answers with an address or with chunks."""

    def __init__(self, folder: Path, url: str, fetcher: HttpsFetcher | None) -> None:
        self.blobs = BlobStore(folder / "blobs")
        self.gets: list[Get] = []
        self.url = url
        self.downloads = Downloads(self.blobs, ask=self.gets.append, wake=lambda: None, fetcher=fetcher)

    def step(self) -> bool:
        """One turn of the agent's loop; whether all is here."""
        self.downloads.tend()
        while self.gets:
            get = self.gets.pop()
            if get.https:
                self.downloads.locate(Located(get.sha256, self.url))
            else:
                self.by_broker += 1
                for index in get.chunks:
                    self.downloads.take(chunk(index))
        return not self.downloads

    by_broker = 0

    def fetch(self) -> bytes:
        """The blob, wherever it comes from."""
        self.downloads.fetch(REF)
        wait_until(self.step, timeout_s=60)
        return self.blobs.read(REF.sha256)


def test_a_blob_comes_by_one_range(store: Store, tmp_path: Path) -> None:
    fetcher = HttpsFetcher(plain=True)
    device = Device(tmp_path, store.url, fetcher)

    assert device.fetch() == DATA
    assert store.ranges == [f"bytes=0-{len(DATA) - 1}"]
    assert (device.by_broker, fetcher.received_bytes) == (0, len(DATA))
    assert device.downloads.fetched_bytes == len(DATA)


def test_only_what_is_missing_is_fetched_after_a_restart(store: Store, tmp_path: Path) -> None:
    first = Device(tmp_path, store.url, None)
    first.downloads.fetch(REF)
    for index in (0, 1, 2, 5):
        first.downloads.take(chunk(index))

    assert Device(tmp_path, store.url, HttpsFetcher(plain=True)).fetch() == DATA
    assert store.ranges == ["bytes=3072-5119", f"bytes=6144-{len(DATA) - 1}"]


def test_what_came_before_a_cut_is_kept(store: Store, tmp_path: Path) -> None:
    store.answers = [lambda request: give(request, DATA[: 4 * CHUNK + 7], 206, promised=len(DATA))]

    assert Device(tmp_path, store.url, HttpsFetcher(plain=True)).fetch() == DATA
    assert store.ranges == [f"bytes=0-{len(DATA) - 1}", f"bytes=4096-{len(DATA) - 1}"]


def test_a_store_that_knows_no_ranges_gives_the_whole(store: Store, tmp_path: Path) -> None:
    store.answers = [lambda request: give(request, DATA, 200), lambda request: give(request, DATA, 200)]
    device = Device(tmp_path, store.url, HttpsFetcher(plain=True))
    device.downloads.fetch(REF)
    device.downloads.take(chunk(0))

    assert device.fetch() == DATA


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda request: give(request, b"expired", 403), id="refused"),
        pytest.param(lambda request: give(request, b"x" * len(DATA), 206), id="other bytes"),
        pytest.param(lambda request: give(request, b"", 302), id="sent elsewhere"),
    ],
)
def test_what_cannot_be_fetched_comes_over_the_broker(
    store: Store, tmp_path: Path, answer: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    store.answers = [answer] * MOST_VAIN
    device = Device(tmp_path, store.url, HttpsFetcher(plain=True))

    assert device.fetch() == DATA
    assert device.by_broker > 0
    assert len(store.ranges) == MOST_VAIN


def test_a_store_that_brings_a_byte_now_and_then_is_given_up_and_its_connection_ended(
    store: Store, tmp_path: Path
) -> None:
    ended, now_s = threading.Event(), itertools.count(0.0, 20.0)

    def drip(request: BaseHTTPRequestHandler) -> None:
        give(request, b"", 206, promised=len(DATA))
        with suppress(OSError):
            while request.connection.send(b"0"):
                # The device has nothing more to say: what comes is the end.
                request.connection.settimeout(0.05)
                with suppress(TimeoutError):
                    request.connection.recv(1)
        ended.set()

    store.answers = [drip] * MOST_VAIN
    device = Device(tmp_path, store.url, HttpsFetcher(plain=True, clock=lambda: next(now_s)))

    assert device.fetch() == DATA
    assert (device.by_broker > 0, len(store.ranges)) == (True, MOST_VAIN)
    assert ended.wait(60)


def test_an_owner_who_wants_no_https_gets_chunks(store: Store, tmp_path: Path) -> None:
    device = Device(tmp_path, store.url, None)

    assert device.fetch() == DATA
    assert store.ranges == []


def test_a_device_that_speaks_tls_fetches_nothing_without(store: Store, tmp_path: Path) -> None:
    device = Device(tmp_path, store.url, HttpsFetcher(plain=False))

    assert device.fetch() == DATA
    assert (store.ranges, device.by_broker > 0) == ([], True)


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "trust")
    broker = authority.issue_broker(["127.0.0.1"], tmp_path / "broker")
    with serving(Store((broker.cert, broker.key))) as store:
        stranger = Device(tmp_path / "stranger", store.url, HttpsFetcher(plain=False))
        friend = Device(tmp_path / "friend", store.url, HttpsFetcher(plain=False, ca=authority.ca))

        assert (stranger.fetch(), friend.fetch()) == (DATA, DATA)
        assert (stranger.by_broker > 0, friend.by_broker) == (True, 0)
        assert len(store.ranges) == 1


def test_a_shaped_line_holds_a_fetch_back(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWRIGHT_FETCH_BYTES_PER_S", "50000")
    began_s = time.monotonic()

    assert Device(tmp_path, store.url, HttpsFetcher(plain=True)).fetch() == DATA
    assert time.monotonic() - began_s > 0.9 * len(DATA) / 50_000
