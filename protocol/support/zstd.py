"""Zstandard by whichever package is there: of the standard library (Python 3.14), its backport, or `zstandard`.

All make the same frames; the backport takes a fifteenth of the disk that `zstandard` takes.
"""

import importlib
from typing import Any

PACKAGES = ("compression.zstd", "backports.zstd", "zstandard")


def _first_there() -> Any:
    for name in PACKAGES[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(PACKAGES[-1])


_found = _first_there()
_OTHER = _found.__name__ == "zstandard"
ZstdError: type[Exception] = _found.ZstdError


def compress(data: Any, level: int) -> bytes:
    """One frame that says how long its content is."""
    if _OTHER:
        return bytes(_found.ZstdCompressor(level=level).compress(data))
    return bytes(_found.compress(data, level=level))


def content_bytes(packed: bytes) -> int | None:
    """How long a frame says that its content is, if it does; ZstdError for what is no frame."""
    if not _OTHER:
        said: int | None = _found.get_frame_info(packed).decompressed_size
        return said
    size = int(_found.get_frame_parameters(packed).content_size)
    return None if size == _found.CONTENTSIZE_UNKNOWN else size


def decompress(packed: bytes, *, size_bytes: int) -> bytes:
    """The content of one frame, of which there must be so much; ZstdError otherwise, before memory is taken."""
    if content_bytes(packed) != size_bytes:
        raise ZstdError(f"the frame's content is not of {size_bytes} bytes")
    if _OTHER:
        return bytes(_found.ZstdDecompressor().decompress(packed, max_output_size=size_bytes, allow_extra_data=False))
    frame = _found.ZstdDecompressor()
    content: bytes = frame.decompress(packed, max_length=size_bytes)
    if not frame.eof:
        # An end that holds no content is read when it is asked for once more.
        content += frame.decompress(b"", max_length=1)
    if not frame.eof or frame.unused_data or len(content) != size_bytes:
        raise ZstdError("the frame is torn, or something follows it")
    return content
