"""Fetches large blobs by HTTPS from an address that the server signed, range by range; the broker carries words only.

What comes is cut into the same chunks as over the broker, so hashes, part files and what is left after a restart are
the same. Redirects are not followed, and nothing that was read is believed before its hash is right.
"""

import logging
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedwright.protocol.errors import LinkError
from fedwright.protocol.messages import BlobRef, Chunk

# It brings two megabytes, which an agent that fetches nothing need not hold.
if TYPE_CHECKING:
    import http.client

log = logging.getLogger(__name__)

ANSWER_S = 30.0
# A store that brings less than this is given up: one byte at a time would keep a connection alive for ever.
LEAST_BYTES_PER_S = 500
# Chunks that wait for the agent's loop; the connection waits meanwhile.
MOST_WAITING = 2
RATE_VARIABLE = "FEDWRIGHT_FETCH_BYTES_PER_S"
"""What an emulated line lets through; nothing on a real device."""


class HttpsFetcher:
    """One fetch at a time, in a thread of its own, whose chunks `take` hands over.

    plain: whether http is good enough, as it is where the broker is spoken to without TLS. ca: an authority to believe
    beside those of the system. bytes_per_s: no faster than that.
    """

    def __init__(
        self,
        *,
        plain: bool,
        ca: Path | None = None,
        bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plain, self._ca = plain, ca
        rate = os.environ.get(RATE_VARIABLE)
        self._bytes_per_s = bytes_per_s or (float(rate) if rate else None)
        self._arrived: queue.Queue[Chunk | None] = queue.Queue(MOST_WAITING)
        self._stopped = _Stop()
        self._clock = clock
        self._heard_s, self._patience_s = 0.0, 0.0
        self.received_bytes = 0
        self.sha256 = ""
        """The blob that is being fetched; empty when none is."""

    def start(self, url: str, ref: BlobRef, missing: Sequence[int], *, wake: Callable[[], None]) -> None:
        """Fetch these chunks of a blob; wake: called whenever something can be taken."""
        self.stop()
        self.sha256 = ref.sha256
        self._stopped, self._arrived = _Stop(), queue.Queue(MOST_WAITING)
        self._heard_s, self._patience_s = self._clock(), ANSWER_S + ref.chunk_bytes / LEAST_BYTES_PER_S
        words = (url, ref, sorted(missing), self._stopped, self._arrived, wake)
        threading.Thread(target=self._run, args=words, name="fetch", daemon=True).start()

    def take(self) -> Iterator[Chunk]:
        """Chunks that have come; when the fetch has ended, well or not, `sha256` is empty afterwards."""
        while self.sha256:
            try:
                chunk = self._arrived.get_nowait()
            except queue.Empty:
                if self._clock() - self._heard_s > self._patience_s:
                    log.info("blob %s comes too slowly; it is asked for again", self.sha256[:12])
                    self.stop()
                return
            self._heard_s = self._clock()
            if chunk is None:
                self.sha256 = ""
                return
            yield chunk

    def stop(self) -> None:
        """Give up what is being fetched, and end its connection."""
        self._stopped.set()
        self.sha256 = ""

    def _run(
        self,
        url: str,
        ref: BlobRef,
        missing: list[int],
        stopped: "_Stop",
        arrived: "queue.Queue[Chunk | None]",
        wake: Callable[[], None],
    ) -> None:
        from http.client import HTTPException

        try:
            for first, last in _runs(missing):
                for chunk in self._read(url, ref, first, last, stopped):
                    if not _put(arrived, chunk, stopped, wake):
                        return
        except (OSError, HTTPException, LinkError, ValueError) as err:
            # The address is a key for a while: it is not for logs.
            log.info("blob %s could not be fetched from %s (%s)", ref.sha256[:12], _host(url), type(err).__name__)
        _put(arrived, None, stopped, wake)

    def _read(self, url: str, ref: BlobRef, first: int, last: int, stopped: "_Stop") -> Iterator[Chunk]:
        """The chunks of one range, as they come."""
        start, end = first * ref.chunk_bytes, min((last + 1) * ref.chunk_bytes, ref.size_bytes)
        connection = self._connect(url)
        try:
            connection.connect()
            stopped.ends(connection.sock)
            parts = urlsplit(url)
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("GET", target, headers={"Range": f"bytes={start}-{end - 1}"})
            answer = connection.getresponse()
            if answer.status not in (200, 206):
                raise LinkError(f"the object store answers {answer.status}")
            if answer.status == 200:
                # Ranges are not for every store or proxy: what is here already is read past.
                _skip(answer, start)
            for index in range(first, last + 1):
                data = self._paced(answer, min(ref.chunk_bytes, ref.size_bytes - index * ref.chunk_bytes), stopped)
                yield Chunk(ref.sha256, index, memoryview(data))
        finally:
            connection.close()

    def _connect(self, url: str) -> "http.client.HTTPConnection":
        import http.client

        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise LinkError("the server names an address that is none of HTTPS")
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=ANSWER_S, context=_tls(self._ca))
        if not self._plain:
            raise LinkError("the server names an address without TLS, and this device speaks with TLS only")
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_S)

    def _paced(self, answer: "http.client.HTTPResponse", size_bytes: int, stopped: "_Stop") -> bytes:
        began_s = time.monotonic()
        data = _exactly(answer, size_bytes)
        self.received_bytes += len(data)
        if self._bytes_per_s is not None:
            stopped.wait(max(0.0, began_s + len(data) / self._bytes_per_s - time.monotonic()))
        return data


class _Stop(threading.Event):
    """Nobody wants a fetch any more: its thread, which may wait for a byte, has its connection ended."""

    def __init__(self) -> None:
        super().__init__()
        self._socket: socket.socket | None = None

    def ends(self, connected: socket.socket) -> None:
        """The connection that is to end."""
        self._socket = connected
        if self.is_set():
            self.set()

    def set(self) -> None:
        """End it."""
        super().set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _tls(ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def _put(arrived: "queue.Queue[Chunk | None]", chunk: Chunk | None, stopped: "_Stop", wake: Callable[[], None]) -> bool:
    """Hand something over as soon as there is room; False when nobody wants it any more."""
    while not stopped.is_set():
        try:
            arrived.put(chunk, timeout=0.5)
        except queue.Full:
            continue
        wake()
        return True
    return False


def _exactly(answer: "http.client.HTTPResponse", size_bytes: int) -> bytes:
    data = answer.read(size_bytes)
    if len(data) != size_bytes:
        raise LinkError("the answer ended too early")
    return data


def _skip(answer: "http.client.HTTPResponse", size_bytes: int) -> None:
    while size_bytes:
        size_bytes -= len(_exactly(answer, min(size_bytes, 1024 * 1024)))


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers that follow each other, as first and last."""
    first = last = -2
    for index in indices:
        if index != last + 1:
            if first >= 0:
                yield first, last
            first = index
        last = index
    if first >= 0:
        yield first, last


def _host(url: str) -> str:
    return urlsplit(url).hostname or "an address without a host"
