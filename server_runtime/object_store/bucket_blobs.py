"""The blob store in a bucket: a blob is there before it counts; a folder of this machine only spares the way."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.errors import BadBlob, StorageError
from fedwright.server_runtime.object_store.bucket import Bucket

log = logging.getLogger(__name__)

CACHE_BYTES = 4 * 1024**3
# Spent blobs are removed so many at a time.
REMOVED_AT_ONCE = 100
# So long an address that a device was given can be read from; it asks for another one when that is over.
ADDRESS_S = 3600.0
# Names of blobs that are not there; more are asked for again.
MOST_ABSENT = 10_000


class BucketBlobs(BlobStore):
    """A BlobStore whose blobs any server of the run can read.

    One server writes at a time, so what it has found or put stays true; check: raises when that is another one now.
    fetched: whether devices are told where to read blobs.
    """

    def __init__(
        self,
        folder: Path,
        bucket: Bucket,
        *,
        limit_bytes: int = CACHE_BYTES,
        check: Callable[[], None] = lambda: None,
        fetched: bool = False,
    ) -> None:
        # A power cut costs the cache at most what is fetched again.
        super().__init__(folder, limit_bytes=limit_bytes, sync=False)
        self.bucket = bucket
        self._check = check
        self._fetched = fetched
        self._there: set[str] = set()
        self._absent: set[str] = set()
        self._spent: list[str] = []
        self._lock = threading.Lock()
        self._all_known = False

    def list_all(self) -> None:
        """Ask once for all that is there, for somebody who only looks."""
        self._there.update(self.bucket.names())
        self._all_known = True

    def has(self, sha256: str) -> bool:
        """Whether the whole blob is in the bucket."""
        if sha256 in self._there:
            return True
        if self._all_known or sha256 in self._absent:
            return False
        there = sha256 not in self._spent and self.bucket.size_bytes(sha256) is not None
        self._note(sha256, there=there)
        return there

    def path(self, sha256: str) -> Path:
        """The blob's file here, fetched when it is not; BadBlob when the bucket has not the bytes of its name."""
        if super().has(sha256):
            return super().path(sha256)
        with self._temporary() as temporary:
            try:
                self.bucket.fetch(sha256, temporary)
            except BadBlob:
                self._note(sha256, there=False)
                raise
            if make_ref(temporary, inline=False).sha256 != sha256:
                self._there.discard(sha256)
                self.bucket.set_aside(sha256)
                what = f"blob {sha256[:12]} in {self.bucket.url} is damaged: its bytes are not those of its name"
                raise BadBlob(f"{what}; put a copy of it back")
            super()._adopt(temporary, sha256)
        self._note(sha256, there=True)
        return self._file(sha256)

    def put_bytes(self, data: bytes) -> str:
        """Keep a blob; returns its name."""
        sha256 = make_ref(data, inline=False).sha256
        # Putting it asks by the way whether it is there.
        if sha256 not in self._there:
            with self._temporary() as temporary:
                temporary.write_bytes(data)
                self._adopt(temporary, sha256)
        return sha256

    def address(self, sha256: str) -> str | None:
        """A signed address of a blob, where devices may fetch."""
        return self.bucket.presigned(sha256, ADDRESS_S) if self._fetched else None

    def remove(self, sha256: str) -> None:
        """Forget a blob; in the bucket some time later, together with others."""
        super().remove(sha256)
        with self._lock:
            if sha256 not in self._absent:
                self._spent.append(sha256)
        self._note(sha256, there=False)
        if len(self._spent) >= REMOVED_AT_ONCE:
            self.remove_spent()

    def remove_spent(self) -> None:
        """Remove from the bucket what was forgotten; what cannot be removed now stays, and that is no fault."""
        with self._lock:
            names, self._spent = self._spent, []
        if not names:
            return
        try:
            self._check()
            self.bucket.remove(names)
        except StorageError as err:
            log.warning("%d spent blobs stay in the bucket: %s", len(names), err)

    def close(self) -> None:
        """Remove what was forgotten."""
        self.remove_spent()

    def _adopt(self, file: Path, sha256: str) -> Path:
        with self._lock:
            # It may be wanted again before it was gone.
            self._spent = [name for name in self._spent if name != sha256]
        if sha256 not in self._there:
            self.bucket.put(sha256, file)
            self._note(sha256, there=True)
        return super()._adopt(file, sha256)

    def _note(self, sha256: str, *, there: bool) -> None:
        with self._lock:
            (self._there if there else self._absent).add(sha256)
            (self._absent if there else self._there).discard(sha256)
            if len(self._absent) > MOST_ABSENT:
                self._absent.clear()
