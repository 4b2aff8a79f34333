"""The training part of an artifact for the classic backend: three files of onnxruntime-training in one record.

Such an artifact is like any other (manifest, hashes, the same eval.onnx), but its `train` bytes hold this record
and its manifest says `backend = "classic"`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedwright.protocol.artifact import MAX_ARTIFACT_BYTES
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.support.unreadable import UNREADABLE

File = Annotated[bytes, Meta(min_length=1, max_length=MAX_ARTIFACT_BYTES)]


class ClassicFiles(Struct, frozen=True):
    """What onnxruntime-training reads; the checkpoint names the parameters, its values are zero."""

    training: File
    optimizer: File
    checkpoint: File


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(ClassicFiles)


def pack_files(files: ClassicFiles) -> bytes:
    """The record as an artifact's `train` bytes."""
    return _encoder.encode(files)


def unpack_files(train: bytes) -> ClassicFiles:
    """The three files, or BadArtifact."""
    try:
        return _decoder.decode(train)
    except UNREADABLE as err:
        raise BadArtifact(f"artifact for the classic backend cannot be decoded: {err}") from err
