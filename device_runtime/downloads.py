"""Blobs on their way to the device: chunks over the broker, or from an address that the server names on request."""

import time
from collections.abc import Callable, Collection

from fedwright.device_runtime.https_fetch import HttpsFetcher
from fedwright.protocol.blobs import BlobStore, Download
from fedwright.protocol.messages import BlobRef, Chunk, Get, Located

# After so many fetches in a row that brought nothing a blob comes over the broker.
MOST_VAIN = 3


class Downloads:
    """What the task in hand still lacks; fetcher: None where nothing comes but over the broker."""

    def __init__(
        self,
        blobs: BlobStore,
        *,
        ask: Callable[[Get], None],
        wake: Callable[[], None],
        fetcher: HttpsFetcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blobs = blobs
        self._ask, self._wake, self._clock = ask, wake, clock
        self._fetcher = fetcher
        self._coming: dict[str, Download] = {}
        self._vain: dict[str, int] = {}
        self._before = 0

    def __bool__(self) -> bool:
        return bool(self._coming)

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._coming

    @property
    def coming(self) -> Collection[Download]:
        """Those under way."""
        return self._coming.values()

    @property
    def fetched_bytes(self) -> int:
        """What came otherwise than over the broker."""
        return 0 if self._fetcher is None else self._fetcher.received_bytes

    def fetch(self, ref: BlobRef) -> None:
        """Have a blob brought unless it is here; BadBlob or DeviceError when it cannot be."""
        if ref.sha256 in self._coming or self._blobs.has(ref.sha256):
            return
        download = Download(self._blobs, ref)
        if download.done:
            download.finish()
        else:
            self._coming[ref.sha256] = download

    def take(self, chunk: Chunk) -> bool:
        """Keep a chunk; True when a blob is whole with it. BadBlob or DeviceError when it cannot be kept."""
        download = self._coming.get(chunk.sha256)
        if download is None:
            return False
        download.accept(chunk.index, chunk.data)
        if not download.done:
            return False
        download.finish()
        del self._coming[chunk.sha256]
        return True

    def locate(self, located: Located) -> None:
        """Fetch a blob from where the server says that it is."""
        download = self._coming.get(located.sha256)
        if download is None or self._fetcher is None or self._fetcher.sha256 or not self._may_fetch(located.sha256):
            return
        self._before = download.missing
        self._fetcher.start(located.url, download.ref, download.lacking, wake=self._wake)

    def tend(self) -> bool:
        """Ask for what is missing, and keep what was fetched; True when a blob is whole with it."""
        whole = self._take_fetched()
        now_s, busy = self._clock(), "" if self._fetcher is None else self._fetcher.sha256
        for sha256, download in self._coming.items():
            if sha256 != busy and (wanted := download.wanted(now_s)):
                self._ask(Get(sha256, wanted, https=not busy and self._may_fetch(sha256)))
        return whole

    def lost_link(self) -> None:
        """Chunks that were asked for will not come."""
        for download in self._coming.values():
            download.lost_link()

    def clear(self) -> None:
        """Nothing of it is wanted any more."""
        self._coming.clear()
        self._vain.clear()
        if self._fetcher is not None:
            self._fetcher.stop()

    def _may_fetch(self, sha256: str) -> bool:
        return self._fetcher is not None and self._vain.get(sha256, 0) < MOST_VAIN

    def _take_fetched(self) -> bool:
        if self._fetcher is None or not self._fetcher.sha256:
            return False
        sha256, whole = self._fetcher.sha256, False
        for chunk in self._fetcher.take():
            whole = self.take(chunk) or whole
        download = self._coming.get(sha256)
        if download is not None and not self._fetcher.sha256:
            # It ended and something is missing: what came counts, and the rest is asked for again.
            vain = download.missing == self._before
            self._vain[sha256] = self._vain.get(sha256, 0) + 1 if vain else 0
            download.lost_link()
        return whole
