"""What stands before the numbers of a safetensors blob; who reads only that needs no numpy."""

from pathlib import Path

import msgspec

from fedwright.protocol.errors import BadBlob
from fedwright.protocol.support.unreadable import UNREADABLE

# A header lists names and shapes; a larger one is not a model.
MAX_HEADER_BYTES = 16 * 1024 * 1024
# To open a file twice takes longer than to read one of this size.
SMALL_BYTES = 1024 * 1024


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(default_factory=dict, name="__metadata__")


def metadata(source: bytes | Path) -> dict[str, str]:
    """The text entries that `save` was given."""
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                head = file.read(8)
                head += file.read(header_bytes(head))
        else:
            head = source[: 8 + header_bytes(source)]
        return msgspec.json.decode(head[8:], type=_Header).metadata
    except UNREADABLE as err:
        raise BadBlob(f"{where(source)} has no readable header: {err}") from err
    except OSError as err:
        raise BadBlob(f"{where(source)} cannot be read: {err}") from err


def small_file(path: Path) -> bytes | Path:
    """The content of a small file, to be read once; a large one as it lies on the disk."""
    try:
        with path.open("rb") as file:
            content = file.read(SMALL_BYTES + 1)
    except OSError as err:
        raise BadBlob(f"{path} cannot be read: {err}") from err
    return content if len(content) <= SMALL_BYTES else path


def header_bytes(head: bytes) -> int:
    """The length of the header, from the first eight bytes."""
    size = int.from_bytes(head[:8], "little")
    if len(head) < 8 or size > MAX_HEADER_BYTES:
        raise BadBlob("blob is too short for tensors or its header is too large")
    return size


def where(source: bytes | Path) -> str:
    """A blob in words."""
    return str(source) if isinstance(source, Path) else f"blob of {len(source)} bytes"
