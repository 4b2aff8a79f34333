"""What has come of a blob so far, on disk: a file with its chunks in place and another that marks which are there."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

# So much is gathered before the disk is told to begin with it.
FLUSH_BYTES = 4 * 1024 * 1024
CAN_FLUSH = hasattr(os, "posix_fadvise")
# Opening a file for each chunk costs time; holding it open costs one of the files that a process may have, and paho
# waits with select(), which ends at file 1024. So a process holds a few part files open, whoever comes first.
KEPT_OPEN = 8
_may_keep_open = threading.BoundedSemaphore(KEPT_OPEN)


class PartFile:
    """Chunks of one blob; those written outlive the process.

    flush: whether the blob is synced to the disk in the end, so that writing should begin early.
    """

    def __init__(self, part: Path, marks: Path, *, chunk_bytes: int, flush: bool) -> None:
        self.part = part
        self.marks = marks
        self._chunk_bytes = chunk_bytes
        self._flush = flush and CAN_FLUSH
        self._unflushed: list[int] = []
        self._handles: tuple[int, int] | None = None

    def held(self, hashes: Sequence[bytes]) -> set[int]:
        """Chunks on disk; marks only say where to look, a power cut may leave them ahead of the data."""
        if not (self.part.exists() and self.marks.exists()):
            return set()
        found = set()
        with self.part.open("rb") as part:
            for index, mark in enumerate(self.marks.read_bytes()[: len(hashes)]):
                part.seek(index * self._chunk_bytes)
                if mark == 1 and hashlib.sha256(part.read(self._chunk_bytes)).digest() == hashes[index]:
                    found.add(index)
        return found

    def write(self, index: int, data: bytes | memoryview) -> None:
        """Put a chunk in its place, then its mark."""
        with self._opened() as (part, marks):
            _write_at(part, index * self._chunk_bytes, data)
            _write_at(marks, index, b"\1")
            self._begin_flush(part, index)

    def complete(self, size_bytes: int) -> bool:
        """Close and cut off what is behind the end; False when the files were removed since the first chunk."""
        self.close()
        if not size_bytes:
            self.part.touch()
            return True
        if not (self.part.exists() and self.marks.exists()):
            return False
        os.truncate(self.part, size_bytes)
        return self.marks.read_bytes() == b"\1" * -(-size_bytes // self._chunk_bytes)

    def close(self) -> None:
        """Let go of the files; a later `write` opens them again."""
        if self._handles is not None:
            for handle in self._handles:
                os.close(handle)
            self._handles = None
            _may_keep_open.release()

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        if self._handles is None and _may_keep_open.acquire(blocking=False):
            try:
                self._handles = self._open()
            except OSError:
                _may_keep_open.release()
                raise
        if self._handles is not None:
            yield self._handles
            return
        handles = self._open()
        try:
            yield handles
        finally:
            for handle in handles:
                os.close(handle)

    def _open(self) -> tuple[int, int]:
        part = os.open(self.part, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            return part, os.open(self.marks, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError:
            os.close(part)
            raise

    def _begin_flush(self, part: int, index: int) -> None:
        """Let the disk begin with what has gathered, so that little is left to wait for in the end."""
        self._unflushed.append(index)
        if self._flush and len(self._unflushed) * self._chunk_bytes >= FLUSH_BYTES:
            first, last = (at * self._chunk_bytes for at in (min(self._unflushed), max(self._unflushed) + 1))
            self._unflushed.clear()
            # Starts to write dirty pages and does not wait; what it drops are clean pages, and there are none yet.
            os.posix_fadvise(part, first, last - first, os.POSIX_FADV_DONTNEED)


def _write_at(handle: int, offset: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view = view[written:]
        offset += written
