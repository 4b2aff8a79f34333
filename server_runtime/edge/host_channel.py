"""An edge's half towards the host: to the host it is a participant that reports, fetches blobs and answers."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedwright import __version__
from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore, Download
from fedwright.protocol.errors import BadBlob, BadMessage
from fedwright.protocol.field_types import INSTEAD
from fedwright.protocol.link.base import Link
from fedwright.protocol.messages import (
    BlobRef,
    Board,
    Carried,
    Chunk,
    DataSummary,
    Get,
    Gone,
    Lost,
    Message,
    Report,
)
from fedwright.protocol.uploads import Uploads

log = logging.getLogger(__name__)

WAIT_S = 0.5


@dataclass(frozen=True)
class Presence:
    """Who this edge is to the host: the fleet it joins, its name there, this life of its process, its machine.

    verify: checks the host's signature on orders to the edge itself; None takes any host's word (development only).
    """

    fleet: str
    name: str
    boot: str
    board: Board
    verify: codec.Verify | None = None
    sign: codec.Sign | None = None


class HostChannel:
    """Speaks with the host; a thread of its own only moves what arrives into a queue and wakes the edge."""

    def __init__(self, link: Link, presence: Presence, *, blobs: BlobStore, wake: Callable[[], None]) -> None:
        self.presence = presence
        self._link = link
        self._blobs = blobs
        self._wake = wake
        self._uploads = Uploads(blobs)
        self._downloads: dict[str, Download] = {}
        self._arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._connects = -1
        self._warned = False
        link.subscribe(topics.down(presence.fleet, presence.name))
        link.subscribe(topics.shared(presence.fleet))
        self._pump = threading.Thread(target=self._move_in, name="from-host", daemon=True)
        self._pump.start()

    def close(self) -> None:
        """Say goodbye and stop listening; the link stays open."""
        self._closing.set()
        self._link.wake()
        self._pump.join()
        self.send(Gone())

    def came_up(self) -> bool:
        """Whether the link came up since the last call; chunks under way are lost then."""
        if self._link.connects == self._connects:
            return False
        self._connects = self._link.connects
        for download in self._downloads.values():
            download.lost_link()
        return True

    def report(self, report: Report | None = None) -> None:
        """Say that this edge is here, or (report) what the devices are that it stands for."""
        if report is not None:
            self.send(report)
            return
        nothing = DataSummary(samples=0, holdout=0, input_shape=[], classes=1)
        board = self.presence.board
        self.send(Report(__version__, board, board.ram_bytes, nothing, trains=False, edge=True, codecs=list(INSTEAD)))

    def carry(self, device: str, payload: bytes) -> None:
        """Pass on what a device said, as it is."""
        self.send(Carried(device, payload))

    def send(self, message: Message, *, reliable: bool = True) -> None:
        """Say something to the host."""
        who = self.presence
        head, tail = codec.encode_parts(message, sender=who.name, boot=who.boot, sign=who.sign)
        self._link.send(topics.up(self.presence.fleet, self.presence.name), head, tail=tail, reliable=reliable)

    def serve(self, ref: BlobRef) -> None:
        """Let the host fetch a blob."""
        self._uploads.serve(ref)

    def stop_serving(self, sha256: str) -> None:
        """A blob is no longer needed by the host."""
        self._uploads.withdraw(sha256)

    def fetch(self, refs: Sequence[BlobRef]) -> bool:
        """Ask the host for what is missing; True when all is here."""
        for ref in refs:
            if ref.sha256 not in self._downloads and not self._blobs.has(ref.sha256):
                download = Download(self._blobs, ref)
                if download.done:
                    download.finish()
                else:
                    self._downloads[ref.sha256] = download
        return all(self._blobs.has(ref.sha256) for ref in refs)

    def tend(self) -> None:
        """Ask for chunks that are due."""
        now_s = time.monotonic()
        for sha256, download in self._downloads.items():
            wanted = download.wanted(now_s)
            if wanted:
                self.send(Get(sha256, wanted), reliable=False)

    def poll(self) -> list[Message]:
        """What the edge must decide on; blobs are dealt with here."""
        return [message for message, _ in self.poll_signed()]

    def poll_signed(self) -> list[tuple[Message, bytes]]:
        """The same, each with the bytes in which the host signed it."""
        heard: list[tuple[Message, bytes]] = []
        while True:
            try:
                payload = self._arrived.get_nowait()
            except queue.Empty:
                return heard
            try:
                body = codec.decode(payload, verify=self.presence.verify).body
            except BadMessage as err:
                log.log(logging.DEBUG if self._warned else logging.WARNING, "from the host: %s", err)
                self._warned = True
                continue
            if isinstance(body, Get):
                for message in self._uploads.answer(body):
                    self.send(message, reliable=False)
            elif isinstance(body, Chunk):
                if self._take_chunk(body):
                    heard.append((body, payload))
            elif isinstance(body, Lost):
                if self._downloads.pop(body.sha256, None) is not None:
                    heard.append((body, payload))
            else:
                heard.append((body, payload))

    def _take_chunk(self, chunk: Chunk) -> bool:
        """Keep a chunk; True when it was the last of its blob."""
        download = self._downloads.get(chunk.sha256)
        if download is None:
            return False
        download.accept(chunk.index, chunk.data)
        if not download.done:
            return False
        del self._downloads[chunk.sha256]
        try:
            download.finish()
        except BadBlob as err:
            log.warning("from the host: %s", err)
            return False
        return True

    def _move_in(self) -> None:
        while not self._closing.is_set():
            received = self._link.receive(WAIT_S)
            if received is not None:
                self._arrived.put(bytes(received.payload))
            self._wake()
