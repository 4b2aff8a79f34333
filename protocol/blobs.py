"""Blobs named by their content: a store on disk, and transfers in which the receiver pulls hash-checked chunks.

A part file and its marks live beside the blobs, so that a transfer goes on after any restart. Nothing here touches a
link: the owner sends `Get(wanted)` and feeds what comes back to `accept`.
"""

import contextlib
import hashlib
import mmap
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import (
    CHUNK_BYTES,
    LARGE_BLOB_BYTES,
    LARGE_CHUNK_BYTES,
    MAX_CHUNKS,
    BlobRef,
)
from fedwright.protocol.part_file import PartFile
from fedwright.protocol.support.files import explained_full_disk, sync_to_disk

MAX_BLOB_BYTES = 2 * 1024**3
WINDOW_BYTES = 4 * 1024 * 1024
WINDOW_S = 0.5
FIRST_WINDOW_CHUNKS = 4
FIRST_WINDOW_BYTES = 1024 * 1024
# Patience with a chunk of CHUNK_BYTES; larger ones get as much more.
RETRY_S = 2.0
MAX_RETRY_S = 60.0
# One answer to a Get holds at most this many chunks; the receiver asks again for the rest.
ANSWER_CHUNKS = 64
STALE_TEMPORARY_S = 3600.0


def usual_chunk_bytes(size_bytes: int) -> int:
    """How a blob of this size is cut: a large one in larger pieces, because each costs both sides some time."""
    return CHUNK_BYTES if size_bytes <= LARGE_BLOB_BYTES else LARGE_CHUNK_BYTES


def blob_name(hashes: Sequence[bytes], size_bytes: int) -> str:
    """The name of a blob: sha256 over a tag, its size and the sha256 of each of its pieces of `usual_chunk_bytes`.

    So the hashes of the chunks prove the whole, and nobody has to hash a blob twice.
    """
    return hashlib.sha256(b"fedwright blob 1\0" + size_bytes.to_bytes(8, "little") + b"".join(hashes)).hexdigest()


def make_ref(source: bytes | Path, *, chunk_bytes: int = LARGE_CHUNK_BYTES, inline: bool = True) -> BlobRef:
    """Describe a blob for its receiver; one that fits a chunk travels inside the description.

    chunk_bytes: no chunk is larger; smaller than usual when a broker takes only small messages.
    """
    size_bytes = source.stat().st_size if isinstance(source, Path) else len(source)
    usual_bytes = usual_chunk_bytes(size_bytes)
    chunk_bytes = min(chunk_bytes, usual_bytes)
    if size_bytes > MAX_CHUNKS * chunk_bytes:
        raise BadBlob(f"blob has more than {MAX_CHUNKS} chunks of {chunk_bytes} bytes; use larger chunks")
    hashes = _hashes(source, chunk_bytes)
    first = next(_pieces_of(source, chunk_bytes), b"") if inline and len(hashes) <= 1 else None
    return BlobRef(
        sha256=blob_name(hashes if chunk_bytes == usual_bytes else _hashes(source, usual_bytes), size_bytes),
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes,
        chunks=hashes,
        inline=None if first is None else bytes(first),
    )


def _hashes(source: bytes | Path, piece_bytes: int) -> list[bytes]:
    return [hashlib.sha256(piece).digest() for piece in _pieces_of(source, piece_bytes)]


def inlined(store: "BlobStore", ref: BlobRef) -> BlobRef:
    """The reference with the blob inside when it fits one chunk, so that it needs no request of its own."""
    return structs.replace(ref, inline=store.read(ref.sha256)) if len(ref.chunks) <= 1 else ref


def check_ref(ref: BlobRef, *, max_bytes: int = MAX_BLOB_BYTES) -> None:
    """Raise BadBlob unless size, number of chunks and inline bytes agree and stay within the limit."""
    if ref.size_bytes > max_bytes:
        raise BadBlob(f"blob of {ref.size_bytes} bytes is over the limit of {max_bytes}")
    expected = -(-ref.size_bytes // ref.chunk_bytes)
    if len(ref.chunks) != expected:
        raise BadBlob(f"blob of {ref.size_bytes} bytes must have {expected} chunks, not {len(ref.chunks)}")
    # With other sizes of chunks the name can only be checked when the blob is here.
    if ref.chunk_bytes == usual_chunk_bytes(ref.size_bytes) and blob_name(ref.chunks, ref.size_bytes) != ref.sha256:
        raise BadBlob(f"the chunks of blob {ref.sha256[:12]} do not add up to its name; refuse its sender")
    if ref.inline is not None and (len(ref.inline) != ref.size_bytes or make_ref(ref.inline).sha256 != ref.sha256):
        raise BadBlob(f"inline bytes of blob {ref.sha256[:12]} do not have the size and name it says")


def _pieces_of(source: bytes | Path, piece_bytes: int) -> Iterator[bytes | memoryview]:
    if isinstance(source, Path):
        with source.open("rb") as file:
            while piece := file.read(piece_bytes):
                yield piece
    else:
        view = memoryview(source)
        yield from (view[at : at + piece_bytes] for at in range(0, len(view), piece_bytes))


class BlobStore:
    """A folder of blobs under their names; above `limit_bytes` the least recently used ones go.

    sync: False outlives the process but not a power cut, and is much faster (simulation).
    """

    def __init__(self, folder: Path, *, limit_bytes: int | None = None, sync: bool = True) -> None:
        self.folder = folder
        # Paths of blobs are made for every look at one.
        self._root = os.path.join(folder, "")
        self._limit_bytes = limit_bytes
        self.syncs = sync
        self._pinned: set[str] = set()
        # Those that had the bytes of their names when they were looked at or written, and how many.
        self._whole: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._clear_temporary()

    def has(self, sha256: str) -> bool:
        """Whether the whole blob is here; a damaged one is set aside."""
        size_bytes = self._size(sha256)
        return size_bytes is not None and self._is_whole(sha256, size_bytes)

    def path(self, sha256: str) -> Path:
        """The blob's file; counts as a use. BadBlob when it is not there, or no longer has the bytes of its name."""
        size_bytes = self._size(sha256)
        if size_bytes is None:
            raise BadBlob(f"blob {sha256[:12]} is not in {self.folder}; fetch it again")
        file = self._file(sha256)
        if self._limit_bytes is not None:
            with contextlib.suppress(FileNotFoundError):
                os.utime(file)
        if not self._is_whole(sha256, size_bytes):
            what = f"blob {sha256[:12]} in {self.folder} is damaged: its bytes are no longer those of its name"
            raise BadBlob(f"{what}; put a copy of it back")
        return file

    def read(self, sha256: str) -> bytes:
        """The whole blob in memory; for small ones."""
        return self.path(sha256).read_bytes()

    def view(self, sha256: str) -> memoryview:
        """The whole blob without reading it; only what is looked at comes into memory."""
        with self.path(sha256).open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size_bytes else b"")

    def put_bytes(self, data: bytes) -> str:
        """Keep a blob; returns its name."""
        return self.keep(data).sha256

    def keep(self, data: bytes, *, chunk_bytes: int = LARGE_CHUNK_BYTES) -> BlobRef:
        """Keep a blob; returns its description."""
        ref = make_ref(data, chunk_bytes=chunk_bytes, inline=False)
        if not self.has(ref.sha256):
            with self._temporary() as temporary:
                temporary.write_bytes(data)
                self._adopt(temporary, ref.sha256)
        return ref

    def vouch(self, ref: BlobRef) -> None:
        """A blob was put into this folder by this program under its own name: it need not be hashed again."""
        self._whole.setdefault(ref.sha256, ref.size_bytes)

    def put_file(self, source: Path) -> str:
        """Keep a copy of a file without reading it whole; returns its name."""
        return self._keep(source, shutil.copyfile)

    def take_file(self, source: Path) -> str:
        """Make a file of the same disk a blob; it is gone from its old place. Returns its name."""
        return self._keep(source, os.replace)

    def _keep(self, source: Path, bring: Callable[[Path, Path], object]) -> str:
        with self._temporary() as temporary:
            bring(source, temporary)
            sha256 = make_ref(temporary, inline=False).sha256
            self._adopt(temporary, sha256)
        return sha256

    def pin(self, sha256: str) -> None:
        """Keep a blob whatever the limit says."""
        self._pinned.add(sha256)

    def unpin(self, sha256: str) -> None:
        """Let the limit decide about a blob again."""
        self._pinned.discard(sha256)

    def remove(self, sha256: str) -> None:
        """Forget a blob and what was received of it."""
        self._drop(sha256)

    def address(self, sha256: str) -> str | None:
        """Where somebody who has no rights can read a blob for a while; None: nowhere."""
        return None

    def close(self) -> None:
        """Let go of what is held elsewhere; a folder holds nothing."""

    def _drop(self, sha256: str) -> None:
        self.unpin(sha256)
        self._whole.pop(sha256, None)
        for suffix in ("", ".part", ".marks"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._root}{sha256}{suffix}")

    def _size(self, sha256: str) -> int | None:
        """The size of a blob's file; None where there is none."""
        try:
            found = os.stat(f"{self._root}{sha256}")
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def _is_whole(self, sha256: str, size_bytes: int) -> bool:
        """Whether a blob's file has the bytes of its name: hashed once in the life of a process, then only measured."""
        known_bytes = self._whole.get(sha256)
        if known_bytes == size_bytes:
            return True
        file = self._file(sha256)
        if known_bytes is None and make_ref(file, inline=False).sha256 == sha256:
            self._whole[sha256] = known_bytes = size_bytes
        if known_bytes == size_bytes:
            return True
        if self._limit_bytes is None:  # A cache fetches it again; of anything else its owner may save a part.
            file.replace(self._file(sha256, ".damaged"))
        self._drop(sha256)
        return False

    def _file(self, sha256: str, suffix: str = "") -> Path:
        return self.folder / f"{sha256}{suffix}"

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        file = self.folder / f"{uuid.uuid4().hex}.tmp"
        try:
            with explained_full_disk(self.folder):
                yield file
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)

    def _adopt(self, file: Path, sha256: str) -> Path:
        """Give a complete file its name, so that a blob is whole or absent also after a power cut."""
        target = self._file(sha256)
        if self.syncs:
            sync_to_disk(file)
        os.replace(file, target)
        self._whole[sha256] = os.stat(target).st_size
        if self.syncs:
            sync_to_disk(self.folder)
        self._shrink(keep=sha256)
        return target

    def _shrink(self, *, keep: str) -> None:
        if self._limit_bytes is None:
            return
        blobs = [(file, file.stat()) for file in self.folder.iterdir() if not file.suffix]
        used_bytes = sum(about.st_size for _, about in blobs)
        for file, about in sorted(blobs, key=lambda blob: blob[1].st_mtime_ns):
            if used_bytes <= self._limit_bytes:
                return
            if file.name != keep and file.name not in self._pinned:
                file.unlink(missing_ok=True)
                used_bytes -= about.st_size

    def _clear_temporary(self) -> None:
        for file in self.folder.glob("*.tmp"):
            if time.time() - file.stat().st_mtime > STALE_TEMPORARY_S:
                file.unlink(missing_ok=True)


class Download:
    """One blob on its way in; asks for chunks within a window and counts a chunk only when it is on disk."""

    def __init__(
        self,
        store: BlobStore,
        ref: BlobRef,
        *,
        window_bytes: int = WINDOW_BYTES,
        retry_s: float = RETRY_S,
        max_bytes: int = MAX_BLOB_BYTES,
    ) -> None:
        check_ref(ref, max_bytes=max_bytes)
        self.ref = ref
        self.duplicates = 0
        self._store = store
        self._retry_s = retry_s * max(1, ref.chunk_bytes // CHUNK_BYTES)
        self._max_window = max(1, window_bytes // ref.chunk_bytes)
        first = max(1, FIRST_WINDOW_BYTES // ref.chunk_bytes)
        self._window = min(FIRST_WINDOW_CHUNKS, first, self._max_window)
        self._asked: set[int] = set()
        # What patience had run out for; a second copy of one of these was slow, not lost.
        self._given_up: set[int] = set()
        self._accepted = 0
        self._seen = 0
        self._progress_s = 0.0
        self._paced = 0
        self._pace_s = 0.0
        part, marks = (store._file(ref.sha256, suffix) for suffix in (".part", ".marks"))
        self._file = PartFile(part, marks, chunk_bytes=ref.chunk_bytes, flush=store.syncs)
        if ref.inline is not None:
            store.put_bytes(ref.inline)
        held = range(len(ref.chunks)) if store.has(ref.sha256) else self._file.held(ref.chunks)
        self._missing = set(range(len(ref.chunks))).difference(held)

    @property
    def done(self) -> bool:
        """Whether every chunk is here; `finish` then gives the file."""
        return not self._missing

    @property
    def missing(self) -> int:
        """How many chunks are not here yet."""
        return len(self._missing)

    @property
    def lacking(self) -> list[int]:
        """The chunks that are not here yet."""
        return sorted(self._missing)

    def wanted(self, now_s: float) -> list[int]:
        """Chunks to ask for now; those asked for before come again when nothing arrived for `retry_s`."""
        self._keep_pace(now_s)
        if self._asked and now_s - self._progress_s >= self._retry_s:
            self._given_up = set(self._asked)
            self.lost_link()
            self._progress_s = now_s
        room = self._window - len(self._asked)
        # Few larger requests instead of one per chunk.
        if self._asked and room < self._window // 2:
            return []
        fresh = sorted(self._missing - self._asked)[:room]
        self._asked.update(fresh)
        return fresh

    def lost_link(self) -> None:
        """Forget what was asked for; its answers will not come."""
        self._asked.clear()

    def accept(self, index: int, data: bytes | memoryview) -> bool:
        """Take a chunk, asked for or not; False when it is not needed or not what the reference says."""
        if index not in self._missing:
            self.duplicates += 1
            if index in self._given_up:
                # Have more patience on this link. Copies of others say nothing: they were meant for another device.
                self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
                self._given_up.clear()
            return False
        self._asked.discard(index)
        if hashlib.sha256(data).digest() != self.ref.chunks[index]:
            return False
        with explained_full_disk(self._store.folder):
            self._file.write(index, data)
        self._missing.discard(index)
        self._accepted += 1
        return True

    def finish(self) -> Path:
        """Hand the complete blob to the store; BadBlob when its chunks do not add up to its name."""
        sha256 = self.ref.sha256
        if self._store.has(sha256):
            return self._store.path(sha256)
        if not self.done:
            raise BadBlob(f"blob {sha256[:12]} still lacks {self.missing} chunks; ask for them first")
        if not self._file.complete(self.ref.size_bytes):
            self._store.remove(sha256)
            raise BadBlob(f"what came of blob {sha256[:12]} was removed from {self._store.folder}; fetch it again")
        part = self._file.part
        usual = self.ref.chunk_bytes == usual_chunk_bytes(self.ref.size_bytes)
        if not usual and make_ref(part, inline=False).sha256 != sha256:
            self._store.remove(sha256)
            raise BadBlob(f"the chunks of blob {sha256[:12]} do not add up to its name; refuse its sender")
        with explained_full_disk(self._store.folder):
            path = self._store._adopt(part, sha256)
        self._file.marks.unlink(missing_ok=True)
        return path

    def _keep_pace(self, now_s: float) -> None:
        """Fit the window to the link: at most about half a second of it may be on its way."""
        if self._accepted > self._seen or not self._asked:
            self._seen = self._accepted
            self._progress_s = now_s
        if not self._accepted and not self._asked:
            self._pace_s = now_s
        if self._accepted - self._paced >= self._window:
            fast = now_s - self._pace_s < WINDOW_S
            self._window = min(2 * self._window, self._max_window) if fast else max(1, self._window // 2)
            self._pace_s, self._paced = now_s, self._accepted
