"""Named tensors as safetensors bytes; equal tensors give equal bytes, garbage gives BadBlob."""

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from fedwright.protocol.errors import BadBlob
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.protocol.tensor_header import header_bytes, where

Array = npt.NDArray[Any]

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "uint64": "U64",
    "int32": "I32",
    "uint32": "U32",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# By the type itself, whose name numpy puts together anew each time; of either order of bytes.
_KNOWN = {
    kind: short
    for name, short in _NAMES.items()
    for kind in (np.dtype(name).newbyteorder("<"), np.dtype(name).newbyteorder(">"))
}


_TYPES = {code: name for name, code in _NAMES.items()}


class _Entry(msgspec.Struct):
    dtype: str = ""
    shape: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    data_offsets: tuple[int, int] = (0, 0)


def save(tensors: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as safetensors bytes, in the order of their names (the library's own order of metadata is random)."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    parts: list[Any] = []
    end = 0
    for name in sorted(tensors):
        given = np.asarray(tensors[name])
        known = _KNOWN.get(given.dtype)
        if known is None:
            raise BadBlob(f"tensor {name} has type {given.dtype}, which cannot be sent; convert it to float32")
        array = np.ascontiguousarray(given, dtype=given.dtype.newbyteorder("<"))
        start, end = end, end + array.nbytes
        header[name] = {"dtype": known, "shape": given.shape, "data_offsets": (start, end)}
        parts.append(array.reshape(-1).view(np.uint8).data)
    head = msgspec.json.encode(header)
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def load(source: bytes | Path) -> dict[str, Array]:
    """Tensors by name, from bytes or (without reading it whole first) from a file."""
    try:
        if isinstance(source, Path):
            return dict(safetensors.numpy.load_file(source))
        return dict(safetensors.numpy.load(source))
    except safetensors.SafetensorError as err:
        raise BadBlob(f"{where(source)} is not a safetensors blob: {err}") from err
    except (KeyError, TypeError, ValueError) as err:
        raise BadBlob(f"{where(source)} holds a tensor type that numpy does not have: {err}") from err
    except OSError as err:
        raise BadBlob(f"{where(source)} cannot be read: {err}") from err


def map_file(path: Path) -> dict[str, Array]:
    """Tensors by name that stay in the file until they are read; nothing can be written to them."""
    found = {}
    try:
        whole = np.memmap(path, np.uint8, mode="r")
        start = 8 + header_bytes(whole[:8].tobytes())
        for name, entry in msgspec.json.decode(whole[8:start].tobytes(), type=dict[str, _Entry]).items():
            if name != "__metadata__":
                found[name] = _mapped(whole[start:], entry)
    except (OSError, *UNREADABLE, KeyError, ValueError) as err:
        raise BadBlob(f"{path} is not a safetensors blob: {err}") from err
    return found


def _mapped(data: Array, entry: "_Entry") -> Array:
    first, last = entry.data_offsets
    dtype = np.dtype(_TYPES[entry.dtype])
    if not 0 <= first <= last <= len(data) or last - first != math.prod(entry.shape) * dtype.itemsize:
        raise ValueError(f"a tensor of {entry.shape} lies at {first} to {last} of {len(data)} bytes")
    part = data[first:last]
    # Where a type's numbers do not begin at a multiple of their size, they are copied.
    own = part if part.ctypes.data % dtype.itemsize == 0 else part.copy()
    found: Array = own.view(dtype).reshape(entry.shape)
    return found
