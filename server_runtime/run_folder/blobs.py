"""Opens the blobs of a run, wherever they are kept."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadBlob, ConfigError
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds.store.base import RunRecord
from fedwright.server_runtime.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from fedwright.server_runtime.object_store.bucket import Bucket


def open_blobs(folder: RunFolder, config: RunConfig, record: RunRecord) -> BlobStore:
    """The blobs of a run, to be looked at: in its folder, or under its identity in a bucket."""
    bucket = _bucket_of(config, record)
    if bucket is None:
        return BlobStore(folder.blobs)
    from fedwright.server_runtime.object_store.bucket_blobs import BucketBlobs

    blobs = BucketBlobs(folder.blobs, bucket)
    blobs.list_all()
    return blobs


@contextmanager
def claim_blobs(
    folder: RunFolder, config: RunConfig, record: RunRecord, *, sync: bool = True, check: Callable[[], None]
) -> Iterator[BlobStore]:
    """The blobs of a run, to be written inside the block; check: raises LeaseLost when the run is another server's."""
    bucket = _bucket_of(config, record)
    if bucket is None:
        yield BlobStore(folder.blobs, sync=sync)
        return
    from fedwright.server_runtime.object_store.bucket_blobs import BucketBlobs

    bucket.check()
    fetched = config.store.fetch == "https"
    with closing(BucketBlobs(folder.blobs, bucket, check=check, fetched=fetched)) as blobs:
        yield blobs


@dataclass(frozen=True)
class BlobFiles:
    """Files of blobs to look at; place: what people know it by. file_of: gives a path where nothing may be."""

    place: str
    file_of: Callable[[str], Path]


@contextmanager
def blob_files(folder: RunFolder, config: RunConfig, record: RunRecord) -> Iterator[BlobFiles]:
    """The files of a run's blobs as they are, none of them set aside; of a bucket copies that go with the block."""
    bucket = _bucket_of(config, record)
    if bucket is None:
        yield BlobFiles(str(folder.blobs), folder.blobs.joinpath)
        return
    with TemporaryDirectory() as copies:

        def copied(sha256: str) -> Path:
            target = Path(copies) / sha256
            try:
                bucket.fetch(sha256, target)
            except BadBlob:
                target.unlink(missing_ok=True)
            return target

        yield BlobFiles(bucket.url, copied)


def _bucket_of(config: RunConfig, record: RunRecord) -> "Bucket | None":
    """Where a run has its blobs when that is not its folder, in which those of a simulation always are."""
    if config.store.blobs is None or record.kind == "simulated":
        return None
    try:
        from fedwright.server_runtime.object_store.bucket import Bucket
    except ModuleNotFoundError as err:
        raise ConfigError(f'store.blobs needs {err.name}; install it with pip install "fedwright[s3]"') from err
    return Bucket(f"{config.store.blobs.rstrip('/')}/{record.identity}")
