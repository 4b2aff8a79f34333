"""Image folders and the small decoders, against an encoder written here and against damaged files."""

import contextlib
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwright.device_runtime import data
from fedwright.device_runtime.data import images, pixels
from fedwright.protocol.errors import DataError
from helpers.present import present


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    image: NDArray[Any],
    colour: int,
    filters: tuple[int, ...] = (0,),
    depth: int = 8,
    interlace: int = 0,
    palette: bytes = b"",
) -> bytes:
    """Encode [h, w, c] with the given line filters in turn."""
    height, width, channels = image.shape
    rows, above = [], np.zeros(width * channels, int)
    for number, row in enumerate(image.reshape(height, -1).astype(int)):
        left = np.concatenate([np.zeros(channels, int), row[:-channels]])
        corner = np.concatenate([np.zeros(channels, int), above[:-channels]])
        guess = left + up_minus(above, corner)
        distances = np.abs(np.stack([guess - left, guess - above, guess - corner]))
        paeth = np.choose(distances.argmin(0), [left, above, corner])
        kind = filters[number % len(filters)]
        predicted = [0 * row, left, above, (left + above) // 2, paeth][kind]
        rows.append(bytes([kind]) + ((row - predicted) % 256).astype(np.uint8).tobytes())
        above = row
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    packed = zlib.compress(b"".join(rows))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + (chunk(b"PLTE", palette) if palette else b"")
        + chunk(b"IDAT", packed[: len(packed) // 2])
        + chunk(b"IDAT", packed[len(packed) // 2 :])
        + chunk(b"IEND", b"")
    )


def up_minus(above: NDArray[Any], corner: NDArray[Any]) -> NDArray[Any]:
    answer: NDArray[Any] = above - corner
    return answer


def picture(channels: int, seed: int = 0, height: int = 6, width: int = 5) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


@pytest.mark.parametrize(
    ("colour", "channels", "kept"), [(0, 1, 1), (2, 3, 3), (4, 2, 1), (6, 4, 3)], ids=["grey", "rgb", "grey+a", "rgba"]
)
def test_png_with_every_filter(colour: int, channels: int, kept: int) -> None:
    image = picture(channels)
    found = pixels.read_png(png(image, colour, filters=(0, 1, 2, 3, 4)), where="here")
    assert np.array_equal(pixels.to_channels(present(found)), np.moveaxis(image[..., :kept], 2, 0))


def test_png_palette_gives_colours() -> None:
    index = np.array([[[0], [1]], [[1], [0]]], np.uint8)
    found = pixels.read_png(png(index, 3, palette=bytes([1, 2, 3, 40, 50, 60])), where="here")
    assert present(found)[0].tolist() == [[1, 2, 3], [40, 50, 60]]


@pytest.mark.parametrize("kind", [{"depth": 16}, {"interlace": 1}], ids=["16 bit", "interlaced"])
def test_other_kinds_of_png_are_left_to_an_image_library(kind: dict[str, Any]) -> None:
    assert pixels.read_png(png(picture(1), 0, **kind), where="here") is None


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda d: d[:40], id="truncated"),
        pytest.param(lambda d: d[:50] + bytes([d[50] ^ 1]) + d[51:], id="bit flipped"),
        pytest.param(lambda d: b"GIF89a" + d, id="not png"),
        pytest.param(lambda d: d[:8] + chunk(b"IEND", b""), id="no image"),
        pytest.param(
            lambda d: d[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31, 2**31, 8, 0, 0, 0, 0)) + d[33:], id="huge"
        ),
        pytest.param(
            lambda d: d[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 60, 8, 0, 0, 0, 0)) + d[33:], id="too few rows"
        ),
    ],
)
def test_damaged_png_is_a_data_error(spoil: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match="here"):
        pixels.read_png(spoil(png(picture(1), 0)), where="here")


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"P5 2 2 255\n", b"P2 2 2 9\n"]))
def test_arbitrary_bytes_never_do_worse_than_a_data_error(body: bytes, head: bytes) -> None:
    for read in (pixels.read_png, pixels.read_netpbm):
        with contextlib.suppress(DataError):
            read(head + body, where="here")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"P5 2 1 255\n\x01\xff", [[[1, 255]]], id="binary grey"),
        pytest.param(b"P5\n# made by hand\n2 1\n255\n\x01\xff", [[[1, 255]]], id="comment"),
        pytest.param(b"P2 2 1 15\n0 15\n", [[[0, 255]]], id="plain grey, 15 levels"),
        pytest.param(b"P6 1 1 255\n\x01\x02\x03", [[[1]], [[2]], [[3]]], id="binary colour"),
        pytest.param(b"P3 1 1 255\n1 2 3", [[[1]], [[2]], [[3]]], id="plain colour"),
    ],
)
def test_netpbm(content: bytes, expected: list[list[list[int]]]) -> None:
    assert pixels.to_channels(pixels.read_netpbm(content, where="here")).tolist() == expected


@pytest.mark.parametrize("content", [b"P5 2 2 255\n\x01", b"P2 1 1 9\n77", b"P9 1 1 9\n1", b"P5 9999999 9999999 255\n"])
def test_netpbm_mistakes(content: bytes) -> None:
    with pytest.raises(DataError, match="here"):
        pixels.read_netpbm(content, where="here")


def folder(root: Path, names: list[str], channels: int = 1) -> None:
    for label, name in enumerate(names):
        (root / name).mkdir()
        for number in range(3):
            image = np.full((4, 4, channels), label * 10 + number, np.uint8)
            (root / name / f"{number}.png").write_bytes(png(image, 0 if channels == 1 else 2))


def test_folder_per_class_in_alphabetical_order(tmp_path: Path) -> None:
    folder(tmp_path, ["cat", "ant"])
    found = data.load(f"images:{tmp_path}", holdout_ratio=0, seed=0)
    assert (found.input_shape, found.classes, found.class_counts) == ((1, 4, 4), 2, (3, 3))
    assert np.allclose(found.x[found.y == 0].max(axis=(1, 2, 3)) * 255, [10, 11, 12])


def test_numbered_folders_are_the_labels(tmp_path: Path) -> None:
    folder(tmp_path, ["2", "10"])
    found = data.load(str(tmp_path), holdout_ratio=0, seed=0)
    assert (found.classes, sorted(set(found.y.tolist()))) == (11, [2, 10])


def test_a_class_list_keeps_devices_in_step(tmp_path: Path) -> None:
    folder(tmp_path, ["cat"])
    (tmp_path / "classes.txt").write_text("ant\nbee\ncat\n")
    found = data.load(str(tmp_path), holdout_ratio=0, seed=0)
    assert (found.classes, set(found.y.tolist())) == (3, {2})
    (tmp_path / "classes.txt").write_text("ant\n")
    with pytest.raises(DataError, match="does not list the class folder 'cat'"):
        data.load(str(tmp_path), holdout_ratio=0, seed=0)


def test_arrays_and_grey_maps_stand_beside_png(tmp_path: Path) -> None:
    folder(tmp_path, ["cat"])
    np.save(tmp_path / "cat" / "x.npy", np.full((4, 4), 9, np.uint8))
    (tmp_path / "cat" / "y.pgm").write_bytes(b"P5 4 4 255\n" + bytes(16))
    assert len(data.load(str(tmp_path), holdout_ratio=0, seed=0).y) == 5


def test_mixed_sizes_are_named(tmp_path: Path) -> None:
    folder(tmp_path, ["cat"])
    (tmp_path / "cat" / "z.png").write_bytes(png(picture(1), 0))
    with pytest.raises(DataError, match=r"z\.png.*one size"):
        data.load(str(tmp_path), holdout_ratio=0, seed=0)


def test_empty_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class folders"):
        data.load(f"images:{tmp_path}", holdout_ratio=0, seed=0)
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="no images"):
        data.load(f"images:{tmp_path}", holdout_ratio=0, seed=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="not a folder"):
        data.load(f"images:{tmp_path}/file", holdout_ratio=0, seed=0)


def test_without_an_image_library_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="pip install pillow"):
        images.read_image(tmp_path / "a.jpg")
