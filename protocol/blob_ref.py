"""A blob by its content, as messages speak of it."""

from typing import Annotated

from msgspec import Meta, Struct

from fedwright.protocol.field_types import Count, Sha256

MAX_CHUNKS = 65_536


class BlobRef(Struct, frozen=True):
    """A blob by its content: the receiver pulls `chunks` it lacks, or finds them inline.

    `sha256` is the name that `blobs.blob_name` makes of the hashes of its pieces; `chunks` are their sha256.
    """

    sha256: Sha256
    size_bytes: Count
    chunk_bytes: Annotated[int, Meta(ge=1024, le=4 * 1024 * 1024)]
    chunks: Annotated[list[Annotated[bytes, Meta(min_length=32, max_length=32)]], Meta(max_length=MAX_CHUNKS)]
    inline: Annotated[bytes, Meta(max_length=4 * 1024 * 1024)] | None = None


class Patch(Struct, frozen=True):
    """What makes another blob of tensors of one that its receiver keeps: `change` is added to `base`, a blob's name."""

    base: Sha256
    change: BlobRef
