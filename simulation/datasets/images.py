"""MNIST and Fashion-MNIST (gzip idx files) and CIFAR-10 (binary version)."""

import gzip
import lzma
import tarfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import DataError
from fedwright.simulation.datasets.base import DataSet, Limit
from fedwright.simulation.datasets.files import Progress, Source, cached_array, fetch, find

Bytes = NDArray[np.uint8]

IDX_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)


def _idx_sources(folder: str, url: str, hashes: tuple[str, ...]) -> tuple[Source, ...]:
    names = [f"{part}-ubyte.gz" for part in IDX_PARTS]
    return tuple(Source(f"{folder}/{name}", url + name, sha) for name, sha in zip(names, hashes, strict=True))


MNIST = _idx_sources("mnist", _MNIST_URL, _MNIST_SHA256)
FASHION = _idx_sources("fashion-mnist", _FASHION_URL, _FASHION_SHA256)
DIGIT_NAMES = tuple(str(digit) for digit in range(10))
FASHION_NAMES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip

CIFAR_ARCHIVE = Source(
    "cifar10/cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_TEST = "test_batch"
CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_RECORD = 1 + 3 * 32 * 32


def load_mnist(limit: Limit, progress: Progress | None) -> DataSet:
    """60,000 + 10,000 grey 28×28 digits, pixels 0..1."""
    return _load_idx("mnist", MNIST, DIGIT_NAMES, limit=limit, progress=progress)


def load_fashion(limit: Limit, progress: Progress | None) -> DataSet:
    """60,000 + 10,000 grey 28×28 pieces of clothing, pixels 0..1."""
    return _load_idx("fashion-mnist", FASHION, FASHION_NAMES, limit=limit, progress=progress)


def load_cifar10(limit: Limit, progress: Progress | None) -> DataSet:
    """32×32 colour images, pixels 0..1; the training batches that are there, or all five by download."""
    train = [batch for batch in CIFAR_TRAIN if _batch_file(batch) is not None]
    if not train or _batch_file(CIFAR_TEST) is None:
        fetch(CIFAR_ARCHIVE, progress)
        train = list(CIFAR_TRAIN)
    records = _records(train, limit.train)
    tests = _records([CIFAR_TEST], limit.test)
    return _image_set("cifar10", CIFAR_NAMES, (_pixels(records), records[:, 0]), (_pixels(tests), tests[:, 0]))


def cifar10_place() -> Path | None:
    """A file that shows CIFAR-10 is here: training and test batches, or the archive."""
    train = next((path for batch in CIFAR_TRAIN if (path := _batch_file(batch)) is not None), None)
    return train if _batch_file(CIFAR_TEST) is not None else None


def _load_idx(
    name: str, sources: tuple[Source, ...], classes: tuple[str, ...], *, limit: Limit, progress: Progress | None
) -> DataSet:
    arrays = [_read_idx(fetch(source, progress)) for source in sources]
    x_train, y_train, x_test, y_test = arrays
    for images, labels, source in ((x_train, y_train, sources[0]), (x_test, y_test, sources[2])):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise DataError(f"{source.path} and its labels do not belong together; get both again")
    train = (x_train[: limit.train, None], y_train[: limit.train])
    return _image_set(name, classes, train, (x_test[: limit.test, None], y_test[: limit.test]))


def _image_set(name: str, classes: tuple[str, ...], train: tuple[Bytes, Bytes], test: tuple[Bytes, Bytes]) -> DataSet:
    def scaled(pixels: Bytes) -> NDArray[np.float32]:
        return np.divide(pixels, np.float32(255), dtype=np.float32)

    return DataSet(
        name=name,
        kind="image",
        x_train=scaled(train[0]),
        y_train=train[1].astype(np.int64),
        x_test=scaled(test[0]),
        y_test=test[1].astype(np.int64),
        classes=classes,
    )


def _read_idx(path: Path) -> Bytes:
    """An array of bytes in the idx format: two zeros, type 8, number of axes, big-endian lengths, data."""
    try:
        with gzip.open(path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as err:
        raise DataError(f"{path} cannot be unpacked: {err}; get it again") from err
    if len(data) < 8 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an idx file of bytes; get it again")
    axes = data[3]
    shape = np.frombuffer(data, ">u4", count=axes, offset=4).astype(np.int64)
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if body.size != np.prod(shape):
        raise DataError(f"{path} holds {body.size} bytes instead of {np.prod(shape)}; get it again")
    return body.reshape(shape)


def _batch_file(batch: str) -> Path | None:
    for path in (f"cifar10/{batch}.bin.xz", f"cifar10/{batch}.bin", CIFAR_ARCHIVE.path):
        found = find(path)
        if found is not None:
            return found
    return None


def _records(batches: list[str], count: int | None) -> Bytes:
    """The first `count` records of these batches; no more batches are read than are needed."""
    parts: list[Bytes] = []
    rows = 0
    for batch in batches:
        path = _batch_file(batch)
        if path is None:
            break
        part = cached_array(f"cifar10-{batch}", path, partial(_read_batch, path, batch))
        parts.append(part.astype(np.uint8, copy=False))
        rows += len(part)
        if count is not None and rows >= count:
            break
    return np.concatenate(parts)[:count]


def _read_batch(path: Path, batch: str) -> Bytes:
    try:
        data = _unpacked(path, batch)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, KeyError) as err:
        raise DataError(f"{path} cannot be unpacked: {err}; get it again") from err
    if not data or len(data) % _CIFAR_RECORD:
        raise DataError(f"{path} holds {len(data)} bytes, which are not records of {_CIFAR_RECORD}; get it again")
    return np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_RECORD)


def _unpacked(path: Path, batch: str) -> bytes:
    if path.suffix == ".xz":
        with lzma.open(path) as file:
            return file.read()
    if path.suffix == ".bin":
        return path.read_bytes()
    with tarfile.open(path) as archive:
        member = archive.extractfile(f"cifar-10-batches-bin/{batch}.bin")
        return member.read() if member is not None else b""


def _pixels(records: Bytes) -> Bytes:
    return records[:, 1:].reshape(-1, 3, 32, 32)
