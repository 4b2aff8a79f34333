"""Blobs in a bucket: what the contract of all blob stores does not say."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.downloads import Downloads
from fedwright.device_runtime.https_fetch import HttpsFetcher
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadBlob, ConfigError, StorageError
from fedwright.protocol.messages import Get
from fedwright.protocol.uploads import Uploads
from fedwright.server_runtime.object_store import bucket_blobs
from fedwright.server_runtime.object_store.bucket import Bucket
from fedwright.server_runtime.object_store.bucket_blobs import BucketBlobs
from fedwright.server_runtime.transport.chunk_server import ChunkServer
from helpers.links import wait_until
from helpers.s3 import BUCKET, SECRET, S3Server, refusing_s3, running_s3


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    s3.enter(monkeypatch)
    return Bucket(f"s3://{BUCKET}/{tmp_path.name}")


def replace_object(bucket: Bucket, name: str, data: bytes, folder: Path) -> None:
    """Somebody writes other bytes under a name."""
    bucket.remove([name])
    (folder / "other").write_bytes(data)
    bucket.put(name, folder / "other")


def test_damage_in_the_bucket_is_found_and_set_aside(bucket: Bucket, tmp_path: Path) -> None:
    name = BucketBlobs(tmp_path / "first", bucket).put_bytes(b"weights")
    replace_object(bucket, name, b"weighTs", tmp_path)
    second = BucketBlobs(tmp_path / "second", bucket)

    with pytest.raises(BadBlob, match="is damaged: its bytes are not those of its name; put a copy of it back"):
        second.read(name)
    assert bucket.names() == [f"{name}.damaged"]
    assert second.put_bytes(b"weights") == name
    assert BucketBlobs(tmp_path / "third", bucket).read(name) == b"weights"


def test_damage_of_the_copy_here_is_mended_from_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    name = BucketBlobs(tmp_path / "here", bucket).put_bytes(b"weights")
    (tmp_path / "here" / name).write_bytes(b"weighTs")

    assert BucketBlobs(tmp_path / "here", bucket).read(name) == b"weights"
    assert bucket.names() == [name]


def test_half_an_object_is_written_anew(bucket: Bucket, tmp_path: Path) -> None:
    store = BucketBlobs(tmp_path / "here", bucket)
    name = store.put_bytes(b"weights")
    replace_object(bucket, name, b"wei", tmp_path)

    assert BucketBlobs(tmp_path / "there", bucket).put_bytes(b"weights") == name
    assert BucketBlobs(tmp_path / "elsewhere", bucket).read(name) == b"weights"


def test_spent_blobs_leave_the_bucket_many_at_a_time(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_blobs, "REMOVED_AT_ONCE", 3)
    store = BucketBlobs(tmp_path / "here", bucket)
    names = [store.put_bytes(bytes([number])) for number in range(5)]
    for name in names[:4]:
        store.remove(name)

    assert sorted(bucket.names()) == sorted(names[3:])
    store.close()
    assert bucket.names() == [names[4]]


def test_a_server_that_lost_its_run_removes_nothing(bucket: Bucket, tmp_path: Path) -> None:
    def lost() -> None:
        raise StorageError("another server has the run")

    store = BucketBlobs(tmp_path / "here", bucket, check=lost)
    name = store.put_bytes(b"weights")
    store.remove(name)
    store.close()

    assert bucket.names() == [name]


def test_the_cache_stays_small_and_the_bucket_whole(bucket: Bucket, tmp_path: Path) -> None:
    store = BucketBlobs(tmp_path / "here", bucket, limit_bytes=250)
    names = [store.put_bytes(bytes([number]) * 100) for number in range(5)]

    assert len(list((tmp_path / "here").iterdir())) == 2
    assert [store.read(name)[0] for name in names] == list(range(5))


def test_an_address_for_one_object_gives_that_object_alone(bucket: Bucket, tmp_path: Path) -> None:
    name = BucketBlobs(tmp_path / "here", bucket).put_bytes(b"weights")
    address = bucket.presigned(name, 60)

    assert f"/{BUCKET}/{tmp_path.name}/{name}?" in address
    assert "X-Amz-Expires=60" in address
    assert SECRET not in address


def test_a_device_that_was_told_where_fetches_from_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    uploads = Uploads(BucketBlobs(tmp_path / "server", bucket, fetched=True))
    ref = uploads.offer(data, chunk_bytes=1024, inline=False)
    sent: list[Any] = []
    server = ChunkServer(uploads, lambda device, message: sent.append(message), clock=time.monotonic)
    fetcher, device = HttpsFetcher(plain=True), BlobStore(tmp_path / "device")
    downloads = Downloads(device, ask=lambda get: server.request("a", get), wake=lambda: None, fetcher=fetcher)
    downloads.fetch(ref)

    def step() -> bool:
        downloads.tend()
        while sent:
            downloads.locate(sent.pop())
        return not downloads

    wait_until(step, timeout_s=60)
    assert device.read(ref.sha256) == data
    assert fetcher.received_bytes == len(data)
    server.request("a", Get(ref.sha256, [3]))
    assert bytes(sent.pop().data) == data[3 * 1024 : 4 * 1024]


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "RequestTimeTooSkewed", r"refuses this machine's clock \(RequestTimeTooSkewed\); set it by NTP"),
        (403, "AccessDenied", r"does not let this server in \(AccessDenied\); give it rights"),
        (403, "SignatureDoesNotMatch", r"does not let this server in \(SignatureDoesNotMatch\)"),
        (404, "NoSuchBucket", r"there is no bucket s3://blobs/x; make it"),
        (501, "NotImplemented", r"answers with a fault \(NotImplemented\); look into its log"),
    ],
)
def test_a_refusal_is_one_sentence_without_secrets(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, said: str
) -> None:
    with refusing_s3(status, code) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fleet")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with pytest.raises(ConfigError, match=f"store.blobs: .*{said}") as caught:
            Bucket("s3://blobs/x", patience_s=0).check()
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_silence_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_s3(500, "InternalError") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fleet")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    with pytest.raises(ConfigError, match="s3://blobs/x does not answer; see that it runs") as caught:
        Bucket("s3://blobs/x", patience_s=0).check()
    assert "\n" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_said(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.enter(monkeypatch)

    with pytest.raises(ConfigError, match="there is no bucket s3://nowhere/x; make it, or mend its name"):
        Bucket("s3://nowhere/x").check()


def test_keys_come_from_the_file_of_the_aws_command_line_too(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3.enter(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "keys").write_text("[night]\naws_access_key_id = owl\naws_secret_access_key = hoot\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "night")

    assert "X-Amz-Credential=owl%2F" in Bucket(f"s3://{BUCKET}").presigned("one", 60)
