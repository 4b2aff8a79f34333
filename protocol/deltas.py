"""Tensors made small for the wire: rounded (bf16, int8, int4), sparse, byte-shuffled and compressed where it pays.

A delta is a safetensors blob. A tensor that was not changed lies in it under its own name; for the others the
metadata says how they were made, and their pieces lie under `v:` (values), `s:` (scales) and `i:` (indices).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from fedwright.protocol import nibbles
from fedwright.protocol import tensors as safe
from fedwright.protocol.errors import BadBlob, BadUpdate
from fedwright.protocol.field_types import Codec as Codec
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.protocol.support.zstd import ZstdError, compress, decompress
from fedwright.protocol.tensor_header import metadata, small_file
from fedwright.protocol.varints import pack_gaps, unpack_gaps

Array = npt.NDArray[Any]
Keep = Mapping[str, Array] | float
"""Which entries to send: a mask per tensor (others go whole), or the share of the largest ones in each tensor."""

KEY = "fedwright.delta"
LEVEL = 1
# Below this ratio of sizes compression is worth the receiver's time; small tensors are left alone.
PAYS_RATIO = 0.97
SMALLEST_BYTES = 256
MAX_ENTRIES = 2**31
# Larger ones would make values that float32 cannot hold.
MAX_SCALE = {codec: np.finfo(np.float32).max / levels for codec, levels in (("int8", 128), ("int4", 8))}
# Of int4 two to an item.
_STORED: dict[str, npt.DTypeLike] = {"float32": np.float32, "bf16": np.uint16, "int8": np.int8, "int4": np.uint8}


class PackedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one tensor was made small."""

    codec: Codec
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=MAX_ENTRIES)]], msgspec.Meta(max_length=8)]
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_ENTRIES)]
    indices: Literal["none", "gaps", "bitmap", "sent"] = "none"
    zstd: bool = False


_decoder = msgspec.json.Decoder(dict[str, PackedTensor])


def encode(
    tensors: Mapping[str, Array],
    *,
    codec: Codec = "float32",
    keep: Keep | None = None,
    implied: bool = False,
    exact: Collection[str] = (),
) -> bytes:
    """Tensors as one blob; those that are not float32 go unchanged. Equal tensors give equal bytes.

    implied: the receiver knows the masks, so values go without indices. exact: names of tensors that lose nothing.
    """
    pieces: dict[str, Array] = {}
    entries: dict[str, PackedTensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype != np.float32:
            pieces[name] = tensor
            continue
        made, entry = _encode_one(
            tensor,
            name=name,
            codec="float32" if name in exact else codec,
            mask=None if name in exact else _mask(tensor, keep, name),
        )
        if implied and "i" in made:
            del made["i"]
            entry = msgspec.structs.replace(entry, indices="sent")
        if entry.codec == "float32" and entry.indices == "none" and not entry.zstd:
            pieces[name] = tensor
        else:
            entries[name] = entry
            pieces.update({f"{kind}:{name}": piece for kind, piece in made.items()})
    note = {KEY: msgspec.json.encode(entries, order="sorted").decode()} if entries else None
    return safe.save(pieces, note)


def decode(
    source: bytes | Path, shapes: Mapping[str, Sequence[int]], *, sent: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Tensors of a blob; BadBlob unless they are exactly those that `shapes` names, in those shapes.

    sent: the masks of values that came without indices.
    """
    entries, pieces, plain = _read(source)
    given = plain.keys() | entries.keys()
    if given != shapes.keys() or plain.keys() & entries.keys():
        odd = sorted(given ^ shapes.keys())[:3]
        raise BadBlob(
            f"delta must hold {len(shapes)} tensors but {', '.join(odd) or 'one'} is missing, unknown or double"
        )
    for name, shape in shapes.items():
        found = entries[name].shape if name in entries else plain[name].shape
        if tuple(found) != tuple(shape):
            raise BadBlob(f"tensor {name} has shape {list(found)} but must have {list(shape)}")
    made = {}
    for name in shapes:
        mask = None if sent is None else sent.get(name)
        made[name] = _decode_one(entries[name], pieces, name, mask) if name in entries else plain[name]
    return made


def load(source: bytes | Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """All tensors of a blob, whatever they are, and the mask of each that came as some of its entries."""
    entries, pieces, plain = _read(source)
    tensors = {**plain, **{name: _decode_one(entry, pieces, name, None) for name, entry in entries.items()}}
    masks = {}
    for name, entry in entries.items():
        if entry.indices != "none":
            masks[name] = np.zeros(entry.shape, dtype=bool)
            masks[name].reshape(-1)[_indices(entry, pieces.get(f"i:{name}"), masks[name].size, name)] = True
    return tensors, masks


def _read(source: bytes | Path) -> tuple[dict[str, PackedTensor], dict[str, Array], dict[str, Array]]:
    """What a blob says of its tensors, all its pieces, and those that are tensors as they are."""
    if isinstance(source, Path):
        source = small_file(source)
    note = metadata(source).get(KEY, "{}")
    try:
        entries = _decoder.decode(note)
    except UNREADABLE as err:
        raise BadBlob(f"delta has an unreadable description: {err}") from err
    pieces = safe.load(source)
    known = {f"{kind}:{name}" for name in entries for kind in "vsi"}
    return entries, pieces, {name: piece for name, piece in pieces.items() if name not in known}


def encode_with_feedback(
    tensors: Mapping[str, Array],
    residual: Mapping[str, Array],
    *,
    codec: Codec = "int8",
    keep: Keep | None = None,
    exact: Collection[str] = (),
) -> tuple[bytes, dict[str, Array]]:
    """Encode tensors plus what earlier rounds left out; returns the blob and what this one leaves out.

    b = encode(x + r),  r' = x + r - decode(b); tensors named in `exact` go as they are and have no r.
    """
    owed = {name: left for name, left in residual.items() if name not in exact}
    total = {name: tensor + owed[name] if name in owed else tensor for name, tensor in tensors.items()}
    blob = encode(total, codec=codec, keep=keep, exact=exact)
    sent = decode(blob, {name: tensor.shape for name, tensor in total.items()})
    changed = [name for name in total if name not in exact and total[name].dtype == np.float32]
    return blob, {name: total[name] - sent[name] for name in changed}


def _mask(tensor: Array, keep: Keep | None, name: str) -> Array | None:
    if keep is None:
        return None
    if isinstance(keep, Mapping):
        mask = keep.get(name)
        return None if mask is None else np.asarray(mask, dtype=bool).reshape(tensor.shape)
    count = math.ceil(keep * tensor.size)
    mask = np.zeros(tensor.size, dtype=bool)
    if count:
        mask[np.argpartition(np.abs(tensor).reshape(-1), tensor.size - count)[tensor.size - count :]] = True
    return mask.reshape(tensor.shape)


def _encode_one(
    tensor: Array, *, name: str, codec: Codec, mask: Array | None
) -> tuple[dict[Literal["v", "s", "i"], Array], PackedTensor]:
    if codec != "float32" and not np.isfinite(tensor).all():
        raise BadUpdate(f"tensor {name} holds values that are not finite; they cannot be sent as {codec}")
    made: dict[Literal["v", "s", "i"], Array] = {}
    stored = tensor
    if codec == "bf16":
        stored = _to_bf16(tensor)
    elif codec == "int8":
        stored, made["s"] = _to_int8(tensor)
    how: Literal["none", "gaps", "bitmap", "sent"] = "none"
    count = stored.size
    if mask is not None:
        stored = stored.reshape(-1)[mask.reshape(-1)]
        count = stored.size
        gaps, bitmap = pack_gaps(np.flatnonzero(mask)), np.packbits(mask)
        how, made["i"] = ("gaps", gaps) if gaps.size < bitmap.size else ("bitmap", bitmap)
    if codec == "int4":
        # What is left out must not widen the scales of what is sent.
        stored, made["s"] = nibbles.pack(stored)
    squeezed = _squeeze(stored)
    made["v"] = stored.reshape(-1) if squeezed is None else squeezed
    return made, PackedTensor(codec, list(tensor.shape), count, how, squeezed is not None)


def _decode_one(entry: PackedTensor, pieces: Mapping[str, Array], name: str, sent: Array | None) -> Array:
    size = math.prod(entry.shape)
    if size > MAX_ENTRIES or entry.count > size or (entry.indices == "none" and entry.count != size):
        raise BadBlob(f"tensor {name} says {entry.count} values for the shape {entry.shape}")
    values = _values(entry, pieces.get(f"v:{name}"), name)
    scales = None
    if entry.codec in ("int8", "int4"):
        count = _channels(entry.shape) if entry.codec == "int8" else nibbles.scale_count(entry.count)
        scales = _expect(pieces.get(f"s:{name}"), (count,), np.float32, f"scales of {name}")
        if not ((scales >= 0) & (scales <= MAX_SCALE[entry.codec])).all():
            raise BadBlob(f"scales of {name} are not finite or not positive")
    if entry.codec == "int4" and scales is not None:
        values, scales = nibbles.unpack(values, scales, entry.count), None
    if entry.indices == "none":
        return _restore(values.reshape(entry.shape), scales)
    dense = np.zeros(size, dtype=values.dtype)
    if entry.indices == "sent":
        dense[_sent_indices(entry, sent, name)] = values
    else:
        dense[_indices(entry, pieces.get(f"i:{name}"), size, name)] = values
    return _restore(dense.reshape(entry.shape), scales)


def _values(entry: PackedTensor, piece: Array | None, name: str) -> Array:
    stored = np.dtype(_STORED[entry.codec])
    items = nibbles.byte_count(entry.count) if entry.codec == "int4" else entry.count
    if not entry.zstd:
        return _expect(piece, (items,), stored, f"values of {name}")
    if piece is None or piece.dtype != np.uint8 or piece.ndim != 1:
        raise BadBlob(f"values of {name} must be compressed bytes")
    wanted_bytes = items * stored.itemsize
    packed = piece.tobytes()
    try:
        raw = decompress(packed, size_bytes=wanted_bytes)
    except ZstdError as err:
        raise BadBlob(f"values of {name} do not unpack to {wanted_bytes} bytes: {err}") from err
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(stored.itemsize, items)
    joined = np.empty((items, stored.itemsize), dtype=np.uint8)
    for rank, plane in enumerate(planes):
        joined[:, rank] = plane
    return joined.view(stored).reshape(-1)


def _sent_indices(entry: PackedTensor, sent: Array | None, name: str) -> Array:
    if sent is None or sent.shape != tuple(entry.shape):
        raise BadBlob(f"values of {name} came without indices although its entries were not chosen beforehand")
    found = np.flatnonzero(sent)
    if found.size != entry.count:
        raise BadBlob(f"tensor {name} has {entry.count} values for the {found.size} entries that were chosen")
    return found


def _indices(entry: PackedTensor, piece: Array | None, size: int, name: str) -> Array:
    if entry.indices == "bitmap":
        packed = _expect(piece, (-(-size // 8),), np.uint8, f"bitmap of {name}")
        found = np.flatnonzero(np.unpackbits(packed, count=size))
        if found.size != entry.count:
            raise BadBlob(f"bitmap of {name} marks {found.size} entries but there are {entry.count} values")
        return found
    if piece is None or piece.dtype != np.uint8 or piece.ndim != 1:
        raise BadBlob(f"indices of {name} are missing")
    return unpack_gaps(piece, count=entry.count, size=size)


def _expect(piece: Array | None, shape: tuple[int, ...], dtype: npt.DTypeLike, what: str) -> Array:
    if piece is None or piece.shape != shape or piece.dtype != dtype:
        raise BadBlob(f"{what} must be {np.dtype(dtype).name} of shape {list(shape)}")
    return piece


def _squeeze(array: Array) -> Array | None:
    """Bytes of equal rank side by side, then zstd; None when that does not pay."""
    if array.nbytes < SMALLEST_BYTES:
        return None
    items = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    planes = np.empty(items.shape[::-1], dtype=np.uint8)
    for rank in range(len(planes)):
        planes[rank] = items[:, rank]
    packed = compress(planes.data, LEVEL)
    return np.frombuffer(packed, dtype=np.uint8) if len(packed) < PAYS_RATIO * array.nbytes else None


def _to_bf16(tensor: Array) -> Array:
    """The upper half of each float32, rounded to the nearest and to even on a tie."""
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    rounded: Array = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return rounded


def _channels(shape: Sequence[int]) -> int:
    """One scale per output channel (first axis) of a matrix or larger, one for a vector."""
    return shape[0] if len(shape) > 1 else 1


def _rows(tensor: Array, channels: int) -> Array:
    return tensor.reshape(channels, tensor.size // max(1, channels))


def _to_int8(tensor: Array) -> tuple[Array, Array]:
    """q = round(x / s), s = max |x| / 127 in each channel."""
    rows = _rows(tensor, _channels(tensor.shape))
    scales = np.abs(rows).max(axis=1, initial=0.0) / np.float32(127)
    # The smallest numbers have no inverse; such a channel is as good as zero.
    usable = scales > np.finfo(np.float32).tiny
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=usable)
    return np.rint(rows * inverse[:, None]).astype(np.int8).reshape(tensor.shape), scales


def _restore(stored: Array, scales: Array | None) -> Array:
    if scales is not None:
        rows = _rows(stored, scales.size).astype(np.float32) * scales[:, None]
        return rows.reshape(stored.shape)
    if stored.dtype == np.uint16:
        return np.asarray(stored.astype(np.uint32) << 16, dtype=np.uint32).view(np.float32)
    return stored
