"""What every blob store must keep, tried on a folder and on a bucket of a real S3 server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedwright.protocol.blobs import BlobStore, Download, make_ref
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import Get
from fedwright.protocol.uploads import Uploads
from fedwright.server_runtime.object_store import bucket as buckets
from fedwright.server_runtime.object_store.bucket import Bucket
from fedwright.server_runtime.object_store.bucket_blobs import BucketBlobs
from helpers.s3 import BUCKET, S3Server, running_s3

DATA = bytes(range(256)) * 40
Open = Callable[[], BlobStore]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["folder", "bucket"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the same blobs again and again: of the bucket, each time on another machine."""
    if request.param == "folder":
        return lambda: BlobStore(tmp_path / "blobs")
    request.getfixturevalue("s3").enter(monkeypatch)
    machines = (tmp_path / f"machine-{number}" for number in range(100))
    return lambda: BucketBlobs(next(machines), Bucket(f"s3://{BUCKET}/{tmp_path.name}"))


def test_what_is_kept_is_there_for_whoever_opens_it_next(reopen: Open, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(DATA)
    store = reopen()
    name = store.put_bytes(DATA)

    assert name == store.put_file(file) == make_ref(DATA).sha256
    assert store.take_file(file) == name
    assert not file.exists()
    other = reopen()
    assert other.has(name)
    assert other.read(name) == other.view(name) == DATA
    assert other.path(name).read_bytes() == DATA
    assert bytes(other.view(store.put_bytes(b""))) == b""


def test_what_is_not_there_is_said(reopen: Open) -> None:
    assert not reopen().has("0" * 64)
    with pytest.raises(BadBlob, match="blob 000000000000 is not in"):
        reopen().read("0" * 64)


def test_what_is_removed_is_gone_unless_it_comes_back(reopen: Open) -> None:
    store = reopen()
    gone, back = store.put_bytes(b"gone"), store.put_bytes(b"back")
    for name in (gone, back):
        store.remove(name)
        assert not store.has(name)
    assert store.put_bytes(b"back") == back
    store.close()

    other = reopen()
    assert (other.has(gone), other.has(back)) == (False, True)
    assert other.read(back) == b"back"


def test_a_blob_that_came_in_chunks_is_kept(reopen: Open) -> None:
    store, sender = reopen(), reopen()
    ref = Uploads(sender).offer(DATA, chunk_bytes=1024, inline=False)
    sender.remove(ref.sha256)
    sender.close()
    download = Download(store, ref)
    for index in range(len(ref.chunks)):
        assert download.accept(index, DATA[index * 1024 : (index + 1) * 1024])

    assert download.finish().read_bytes() == DATA
    assert reopen().read(ref.sha256) == DATA


def test_chunks_are_answered_from_it(reopen: Open) -> None:
    ref = Uploads(reopen()).offer(DATA, chunk_bytes=1024, inline=False)
    uploads = Uploads(reopen())
    uploads.serve(ref)

    [chunk] = uploads.answer(Get(ref.sha256, [3]))

    assert bytes(chunk.data) == DATA[3 * 1024 : 4 * 1024]  # type: ignore[union-attr]


def test_a_large_blob_is_kept_in_parts(reopen: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The least that S3 takes as a part that is not the last.
    monkeypatch.setattr(buckets, "PART_BYTES", 5 * 1024 * 1024)
    file = tmp_path / "large"
    with file.open("wb") as target:
        target.truncate(12 * 1024 * 1024)
        target.seek(6 * 1024 * 1024)
        target.write(DATA)

    name = reopen().put_file(file)

    assert reopen().path(name).read_bytes() == file.read_bytes()
