"""The sender's half of a transfer: what is offered, and the chunks that a receiver asks for."""

from collections.abc import Iterator
from pathlib import Path

from fedwright.protocol.blobs import ANSWER_CHUNKS, BlobStore, make_ref
from fedwright.protocol.messages import LARGE_CHUNK_BYTES, BlobRef, Chunk, Get, Lost


class Uploads:
    """Blobs that others may ask for; answers are made chunk by chunk, never held together."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._chunk_bytes: dict[str, int] = {}
        self._chunks: dict[str, int] = {}

    def offer(self, source: bytes | Path, *, chunk_bytes: int = LARGE_CHUNK_BYTES, inline: bool = True) -> BlobRef:
        """Store a blob and describe it; it stays until `withdraw`."""
        sha256 = self._store.put_bytes(source) if isinstance(source, bytes) else self._store.put_file(source)
        ref = make_ref(self._store.path(sha256), chunk_bytes=chunk_bytes, inline=inline)
        self.serve(ref)
        return ref

    def offer_file(self, source: Path, *, chunk_bytes: int) -> BlobRef:
        """The same for a file that nobody else needs, which moves into the store."""
        ref = make_ref(self._store.path(self._store.take_file(source)), chunk_bytes=chunk_bytes, inline=False)
        self.serve(ref)
        return ref

    def serve(self, ref: BlobRef) -> None:
        """Answer for a blob that is in the store already, as after a restart."""
        self._chunk_bytes[ref.sha256], self._chunks[ref.sha256] = ref.chunk_bytes, len(ref.chunks)
        self._store.pin(ref.sha256)

    def count(self, sha256: str) -> int:
        """How many chunks a blob has; 0 for one that is not offered."""
        return self._chunks.get(sha256, 0)

    def serves(self, sha256: str) -> bool:
        """Whether a blob is answered for."""
        return sha256 in self._chunk_bytes

    def withdraw(self, sha256: str) -> None:
        """Stop answering for a blob."""
        self._chunk_bytes.pop(sha256, None)
        self._chunks.pop(sha256, None)
        self._store.unpin(sha256)

    def address(self, sha256: str) -> str | None:
        """Where a blob of several chunks can be fetched instead; None: only from here."""
        return self._store.address(sha256) if self.count(sha256) > 1 else None

    def answer(self, get: Get, *, limit: int = ANSWER_CHUNKS) -> Iterator[Chunk | Lost]:
        """The first `limit` chunks asked for, or the news that the blob is gone."""
        chunk_bytes = self._chunk_bytes.get(get.sha256)
        if chunk_bytes is None or not self._store.has(get.sha256):
            yield Lost(get.sha256)
            return
        blob = self._store.view(get.sha256)
        for index in get.chunks[:limit]:
            if data := blob[index * chunk_bytes : (index + 1) * chunk_bytes]:
                yield Chunk(get.sha256, index, data)
