"""The change under masks that the server may fetch: one at a time, each in place of the one before."""

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.messages import BlobRef
from fedwright.protocol.uploads import Uploads


class MaskedBlob:
    """Called with the bytes, it says where they lie (sums.Offer)."""

    def __init__(self, blobs: BlobStore, uploads: Uploads) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._last = ""

    def __call__(self, data: bytes, chunk_bytes: int) -> BlobRef:
        """Offer these bytes."""
        ref = self._uploads.offer(data, chunk_bytes=chunk_bytes)
        if self._last not in ("", ref.sha256):
            self._uploads.withdraw(self._last)
            self._blobs.remove(self._last)
        self._last = ref.sha256
        return ref
