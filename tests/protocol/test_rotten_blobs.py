"""Blobs whose bytes changed on the disk are noticed, set aside and fetched again."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from fedwright.protocol.blobs import BlobStore, Download, make_ref
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import BlobRef

CHUNK = 1024
DATA = bytes(range(256)) * 41


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def ref() -> BlobRef:
    return make_ref(DATA, chunk_bytes=CHUNK)


def rot(store: BlobStore, sha256: str) -> None:
    file = store.folder / sha256
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_blob_that_rotted_between_two_lives_is_noticed(store: BlobStore) -> None:
    sha256 = store.put_bytes(DATA)
    rot(store, sha256)
    reborn = BlobStore(store.folder)

    with pytest.raises(BadBlob, match=f"blob {sha256[:12]} in .* is damaged: its bytes are no longer those of its"):
        reborn.path(sha256)
    assert not reborn.has(sha256)
    assert (store.folder / f"{sha256}.damaged").exists()


def test_a_blob_that_was_cut_in_this_life_is_noticed(store: BlobStore) -> None:
    sha256 = store.put_bytes(DATA)
    store.path(sha256).write_bytes(DATA[:-1])

    with pytest.raises(BadBlob, match="is damaged"):
        store.read(sha256)


def test_a_rotten_blob_is_not_taken_for_the_whole_one(store: BlobStore) -> None:
    sha256 = store.put_bytes(DATA)
    rot(store, sha256)
    reborn = BlobStore(store.folder)

    assert not reborn.has(sha256)
    assert reborn.put_bytes(DATA) == sha256
    assert reborn.read(sha256) == DATA


def test_a_cache_keeps_no_rotten_blob(tmp_path: Path) -> None:
    sha256 = BlobStore(tmp_path).put_bytes(DATA)
    rot(BlobStore(tmp_path), sha256)

    assert not BlobStore(tmp_path, limit_bytes=10**6).has(sha256)
    assert list(tmp_path.iterdir()) == []


def test_a_rotten_blob_is_fetched_again(store: BlobStore, ref: BlobRef) -> None:
    rot(store, store.put_bytes(DATA))
    download = Download(BlobStore(store.folder), ref)

    assert download.missing == len(ref.chunks)


def test_each_blob_is_hashed_once_in_a_life(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = store.put_bytes(DATA)
    reborn = BlobStore(store.folder)
    counted = Mock(wraps=make_ref)
    monkeypatch.setattr("fedwright.protocol.blobs.make_ref", counted)

    for _ in range(3):
        assert reborn.has(sha256)
        reborn.path(sha256)
        reborn.read(sha256)
        store.path(sha256)

    assert [once.args for once in counted.call_args_list] == [(store.folder / sha256,)]
