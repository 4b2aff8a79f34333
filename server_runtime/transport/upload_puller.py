"""Fetches blobs from devices, a few at a time; the counterpart of `chunk_server.py`."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol.blobs import BlobStore, Download
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import BlobRef, Chunk, Get, Lost

# Uploads pulled at the same time: enough to fill a link, few enough that the broker and the disk stay calm.
MAX_PULLS = 8
MAX_PULL_BYTES = 256 * 1024 * 1024
# An upload of which nothing came for so long does not count among these; a slow one still goes on.
STALL_S = 10.0

Send = Callable[[str, Get], None]
"""Asks a device for pieces of a blob."""


@dataclass(frozen=True)
class Pulled:
    """A blob that was asked for is complete in the store, or (`problem`) cannot be had."""

    device: str
    sha256: str
    problem: str = ""


@dataclass
class _Pull:
    device: str
    download: Download
    progress_s: float


class UploadPuller:
    """Blobs on their way in; what ends is told by `events`."""

    def __init__(self, blobs: BlobStore, send: Send, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._blobs = blobs
        self._send = send
        self._clock = clock
        self._pulls: dict[str, _Pull] = {}
        self._waiting: deque[tuple[str, BlobRef]] = deque()
        # Blobs that came inline or are here already.
        self._ready: deque[tuple[str, BlobRef]] = deque()
        # Where else than with its device a blob lies.
        self._places: dict[str, str] = {}
        self._events: list[Pulled] = []

    def pull(self, device: str, ref: BlobRef) -> None:
        """Fetch a blob from a device."""
        if ref.inline is not None or self._blobs.has(ref.sha256):
            self._ready.append((device, ref))
        elif ref.sha256 not in self._pulls and all(waiting.sha256 != ref.sha256 for _, waiting in self._waiting):
            self._waiting.append((device, ref))

    def lies_with(self, sha256: str, edge: str) -> None:
        """A device's blob was carried by an edge, and is to be fetched there."""
        self._places[sha256] = edge

    def admit(self) -> None:
        """Begin what there is room for."""
        while self._ready:
            self._begin(*self._ready.popleft())
        while self._waiting and self._has_room(self._waiting[0][1]):
            self._begin(*self._waiting.popleft())

    def tend(self) -> None:
        """Ask for pieces that are due."""
        for sha256, pull in self._pulls.items():
            self._ask(sha256, pull)

    def events(self) -> list[Pulled]:
        """What ended since the last call."""
        events, self._events = self._events, []
        return events

    def lost_link(self) -> None:
        """Answers to what was asked for will not come."""
        for pull in self._pulls.values():
            pull.download.lost_link()

    def drop(self, device: str) -> None:
        """Forget what is fetched from a device that left; it says again what it has when it is back."""
        self._pulls = {sha256: pull for sha256, pull in self._pulls.items() if pull.device != device}
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] != device)

    def take(self, device: str, message: Chunk | Lost) -> None:
        """A piece of a blob, or the news that it is lost."""
        pull = self._pulls.get(message.sha256)
        if pull is None or pull.device != device:
            return
        if isinstance(message, Lost):
            del self._pulls[message.sha256]
            self._end(device, message.sha256, "the device no longer holds the blob it announced")
            return
        if pull.download.accept(message.index, message.data):
            pull.progress_s = self._clock()
        if not pull.download.done:
            self._ask(message.sha256, pull)
            return
        del self._pulls[message.sha256]
        self._finish(pull)

    def _begin(self, device: str, ref: BlobRef) -> None:
        device = self._places.pop(ref.sha256, device)
        try:
            pull = _Pull(device, Download(self._blobs, ref), self._clock())
        except BadBlob as err:
            self._end(device, ref.sha256, str(err))
            return
        if pull.download.done:
            self._finish(pull)
        else:
            self._pulls[ref.sha256] = pull

    def _finish(self, pull: _Pull) -> None:
        sha256 = pull.download.ref.sha256
        try:
            pull.download.finish()
        except BadBlob as err:
            self._end(pull.device, sha256, str(err))
            return
        self._end(pull.device, sha256)

    def _end(self, device: str, sha256: str, problem: str = "") -> None:
        self._events.append(Pulled(device, sha256, problem))

    def _has_room(self, ref: BlobRef) -> bool:
        """Whether another upload may start beside those that come in; one alone always may."""
        since_s = self._clock() - STALL_S
        sizes = [pull.download.ref.size_bytes for pull in self._pulls.values() if pull.progress_s > since_s]
        return not sizes or (len(sizes) < MAX_PULLS and sum(sizes) + ref.size_bytes <= MAX_PULL_BYTES)

    def _ask(self, sha256: str, pull: _Pull) -> None:
        wanted = pull.download.wanted(self._clock())
        if wanted:
            self._send(pull.device, Get(sha256, wanted))
