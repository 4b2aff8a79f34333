"""Compression, by whichever package is there: the same frames, and nothing is believed that a frame says of itself."""

import contextlib
import importlib
from typing import Any

import pytest

from fedwright.protocol.support import zstd

CONTENT = bytes(range(256)) * 300


def installed() -> list[str]:
    """Those of the packages that are here."""
    found = []
    for name in zstd.PACKAGES:
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name).__name__)
    return found


@pytest.fixture(params=installed())
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each package that is installed here, in place of the one that was found first."""
    found = importlib.import_module(request.param)
    monkeypatch.setattr(zstd, "_found", found)
    monkeypatch.setattr(zstd, "_OTHER", request.param == "zstandard")
    monkeypatch.setattr(zstd, "ZstdError", found.ZstdError)
    return found


@pytest.mark.parametrize("content", [b"", b"x", CONTENT], ids=["empty", "one byte", "long"])
def test_a_frame_gives_its_content_back(package: Any, content: bytes) -> None:
    packed = zstd.compress(content, 1)

    assert zstd.content_bytes(packed) == len(content)
    assert zstd.decompress(packed, size_bytes=len(content)) == content


def test_a_frame_is_the_same_from_every_package(package: Any) -> None:
    of_zstandard = importlib.import_module("zstandard").ZstdCompressor(level=1).compress(CONTENT)

    assert zstd.compress(CONTENT, 1) == of_zstandard


@pytest.mark.parametrize(
    ("spoil", "size_bytes"),
    [
        pytest.param(lambda packed: packed, len(CONTENT) + 1, id="too short"),
        pytest.param(lambda packed: packed, len(CONTENT) - 1, id="too long"),
        pytest.param(lambda packed: packed[:-3], len(CONTENT), id="torn"),
        pytest.param(lambda packed: packed + b"more", len(CONTENT), id="something follows"),
        pytest.param(lambda packed: packed + packed, len(CONTENT), id="two frames"),
        pytest.param(lambda packed: b"no frame at all", len(CONTENT), id="no frame"),
    ],
)
def test_what_is_no_single_whole_frame_of_that_size_is_refused(package: Any, spoil: Any, size_bytes: int) -> None:
    packed = spoil(zstd.compress(CONTENT, 1))

    with pytest.raises(zstd.ZstdError):
        zstd.decompress(packed, size_bytes=size_bytes)
