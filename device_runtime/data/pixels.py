"""Small readers for PGM, PPM and plain 8-bit PNG, so that a device needs no image library for them."""

import re
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import DataError

Pixels = NDArray[np.uint8]

# An image larger than this is a mistake or an attack on a board's memory.
MAX_PIXELS = 64 * 1024 * 1024

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_NETPBM = re.compile(rb"P([2356])((?:\s+|#[^\n]*\n)+)(\d+)((?:\s+|#[^\n]*\n)+)(\d+)((?:\s+|#[^\n]*\n)+)(\d+)\s")


def to_channels(image: Pixels) -> Pixels:
    """[height, width] or [height, width, channels] as [channels, height, width]."""
    return image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)


def read_netpbm(data: bytes, *, where: str) -> Pixels:
    """PGM or PPM, plain or binary, up to 255 grey levels."""
    head = _NETPBM.match(data)
    if head is None:
        raise DataError(f"{where}: is not a PGM or PPM image")
    kind, width, height, top = (int(head[group]) for group in (1, 3, 5, 7))
    channels = 3 if kind in (3, 6) else 1
    count = width * height * channels
    if not 0 < count <= MAX_PIXELS or not 0 < top <= 255:
        raise DataError(f"{where}: {width}x{height} with {top} levels is outside what is read here (8 bit)")
    if kind in (5, 6):
        flat = np.frombuffer(data, np.uint8, offset=head.end(), count=min(count, len(data) - head.end()))
    else:
        words = data[head.end() :].split()
        if not all(word.isdigit() and int(word) <= top for word in words):
            raise DataError(f"{where}: holds a pixel that is not a number from 0 to {top}")
        flat = np.array([int(word) for word in words], np.uint8)
    if flat.size != count:
        raise DataError(f"{where}: is cut short, {flat.size} of {count} values are there")
    if top != 255:
        flat = np.minimum(np.rint(flat.astype(np.float32) * (255 / top)), 255).astype(np.uint8)
    return flat.reshape((height, width) if channels == 1 else (height, width, 3))


def read_png(data: bytes, *, where: str) -> Pixels | None:
    """An 8-bit PNG without interlacing, transparency dropped; None for other kinds of PNG."""
    if not data.startswith(_SIGNATURE):
        raise DataError(f"{where}: is not a PNG image")
    chunks = _chunks(data, where=where)
    if "IHDR" not in chunks or len(chunks["IHDR"]) != 13 or "IDAT" not in chunks:
        raise DataError(f"{where}: is not a complete PNG image")
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks["IHDR"])
    if depth != 8 or interlace or colour not in _CHANNELS:
        return None
    channels = _CHANNELS[colour]
    if not 0 < width * height * channels <= MAX_PIXELS:
        raise DataError(f"{where}: {width}x{height} is larger than {MAX_PIXELS} values")
    size = height * (1 + width * channels)
    try:
        raw = zlib.decompressobj().decompress(chunks["IDAT"], size + 1)
    except zlib.error as err:
        raise DataError(f"{where}: is damaged ({err})") from err
    if len(raw) != size:
        raise DataError(f"{where}: is damaged, its pixels are {len(raw)} bytes and not {size}")
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)
    image = _unfilter(lines, channels, where=where).reshape(height, width, channels)
    return _colours(image, colour, chunks.get("PLTE", b""), where=where)


def _colours(image: Pixels, colour: int, palette: bytes, *, where: str) -> Pixels:
    if colour == 3:
        table = np.frombuffer(palette[: len(palette) // 3 * 3], np.uint8).reshape(-1, 3)
        if len(table) <= int(image.max()):
            raise DataError(f"{where}: is damaged, its palette has {len(table)} colours only")
        return table[image[..., 0]]
    return image[..., :3] if colour in (2, 6) else image[..., 0]


def _chunks(data: bytes, *, where: str) -> dict[str, bytes]:
    """Chunk contents by type, equal types joined, each checked by its CRC."""
    found: dict[str, list[bytes]] = {}
    at = len(_SIGNATURE)
    while at + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        at += 12 + size
        if at > len(data) or zlib.crc32(kind + body) != struct.unpack_from(">I", data, at - 4)[0]:
            raise DataError(f"{where}: is damaged or cut short")
        found.setdefault(kind.decode("latin-1"), []).append(body)
        if kind == b"IEND":
            break
    return {kind: b"".join(parts) for kind, parts in found.items()}


def _unfilter(lines: Pixels, step: int, *, where: str) -> Pixels:
    """Undo the per-line prediction of PNG; `step` is the bytes of one pixel."""
    out = np.zeros((len(lines) + 1, lines.shape[1] - 1), np.uint8)
    for row, line in enumerate(lines):
        kind, coded, above = int(line[0]), line[1:], out[row]
        if kind == 0:
            out[row + 1] = coded
        elif kind == 1:
            out[row + 1] = np.cumsum(coded.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            out[row + 1] = coded + above
        elif kind in (3, 4):
            out[row + 1] = _predict_line(coded.tolist(), above.tolist(), step, paeth=kind == 4)
        else:
            raise DataError(f"{where}: is damaged, line {row} has filter {kind}")
    return out[1:]


def _predict_line(coded: list[int], above: list[int], step: int, *, paeth: bool) -> list[int]:
    # Each byte depends on the one before, so this is a plain loop.
    line = [0] * step
    upper = [0] * step + above
    for at, value in enumerate(coded):
        left, up, corner = line[at], upper[at + step], upper[at]
        line.append((value + (_paeth(left, up, corner) if paeth else (left + up) // 2)) & 255)
    return line[step:]


def _paeth(left: int, up: int, corner: int) -> int:
    """Whichever neighbour is nearest to left + up − corner, ties in the order left, up, corner."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
