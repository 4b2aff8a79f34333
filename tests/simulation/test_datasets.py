"""Loaders, on tiny files in the real formats, and on the real files where this machine has them."""

import gzip
import hashlib
import lzma
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError, DataError
from fedwright.simulation.datasets import DATASETS, Limit, available, files, images, load, load_titles
from helpers.data_files import (
    WRITERS,
    cifar_archive,
    write_cifar,
    write_cora,
    write_mnist,
    write_motionsense,
    write_titles,
    write_uci_har,
)
from helpers.present import present

REAL = os.environ.get(files.VARIABLE)
PRESENT = [i.name for i in available() if i.place == "embedded" or (REAL and i.place and i.place.startswith(REAL))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedwright" / "datasets"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder that the loaders look into."""
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_digits_are_embedded() -> None:
    data = load("digits")

    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.x_test.shape == (359, 1, 8, 8)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert data.input_shape == (1, 8, 8)


def test_mnist(folder: Path) -> None:
    write_mnist(folder)

    data = load("mnist", limit=Limit(train=3))

    assert data.x_train.shape == (3, 1, 28, 28)
    assert data.x_test.shape == (2, 1, 28, 28)
    assert data.x_train[0, 0, 0, 255 % 28] == np.float32(255 % 28) / np.float32(255)
    assert data.y_train.tolist() == [0, 1, 2]


def test_cifar10_reads_the_batches_that_are_there(folder: Path) -> None:
    write_cifar(folder)

    data = load("cifar10")

    assert data.x_train.shape == (8, 3, 32, 32)
    assert data.y_train.tolist() == [1, 2, 3, 4, 2, 3, 4, 5]
    assert data.y_test.tolist() == [9, 0, 1]
    assert data.x_train[0].mean(axis=(1, 2)).tolist() == [1, 0, 0]


def test_cifar10_is_decoded_once(folder: Path, own_cache: Path) -> None:
    write_cifar(folder)
    first = load("cifar10", limit=Limit(train=2))
    kept = sorted((own_cache / "decoded").iterdir())

    again = load("cifar10", limit=Limit(train=2))

    np.testing.assert_array_equal(first.x_train, again.x_train)
    assert [path.name.rpartition("-")[0] for path in kept] == ["cifar10-data_batch_1", "cifar10-test_batch"]
    assert sorted((own_cache / "decoded").iterdir()) == kept


def test_a_spoilt_decoded_file_is_made_again(folder: Path, own_cache: Path) -> None:
    write_cifar(folder)
    load("cifar10")
    for path in (own_cache / "decoded").iterdir():
        path.write_bytes(b"spoilt")

    assert load("cifar10").x_train.shape == (8, 3, 32, 32)


def test_motionsense_windows(folder: Path) -> None:
    write_motionsense(folder)

    data = load("motionsense")

    # 200 steps hold 2 windows of 128 by 64, 300 hold 3, 100 none; the short trial of 128 holds 1
    assert data.x_train.shape == (5, 9, 128)
    assert data.x_test.shape == (1, 9, 128)
    assert data.owners == ("4", "9")
    assert present(data.owner_train).tolist() == [0, 0, 1, 1, 1]
    assert data.y_train.tolist() == [0, 0, 1, 1, 1]
    signal = np.load(folder / "motionsense.npz")["signal"].astype(np.float32)
    np.testing.assert_array_equal(data.x_train[1], signal[64:192].T)


def test_uci_har(folder: Path) -> None:
    write_uci_har(folder)

    data = load("uci-har")

    assert data.x_train.shape == (3, 9, 64)
    assert data.owners == ("1", "2", "5")
    assert present(data.owner_train).tolist() == [0, 0, 2]
    assert present(data.owner_test).tolist() == [1, 1]


def test_cora(folder: Path) -> None:
    write_cora(folder)

    data = load("cora")

    assert data.x_train.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert data.y_train.tolist() == [0, 6, 2]
    assert data.extra["edges"].tolist() == [[0, 1], [1, 2]]


def test_titles_become_prefixes(folder: Path) -> None:
    write_titles(folder)

    data = load("medium-titles")

    words = np.array(data.classes)
    # The apostrophe is a space, so the title has 9 words and 8 prefixes.
    first = [" ".join(words[row[row > 0]]) for row in data.x_train[:3]]
    assert first == ["how", "how to", "how to write"]
    assert words[data.y_train[:3]].tolist() == ["to", "write", "code"]
    assert data.x_train.shape[1] == 23
    assert (np.asarray(data.x_train, np.float32)[:, -1] > 0).all()
    assert len(data.x_train) == 8 * len(np.unique(data.extra["article_train"]))
    assert data.owners == ("The Startup", "UX Collective")


def test_titles_follow_their_seed(folder: Path) -> None:
    write_titles(folder)

    one, same, other = load_titles(None, seed=1), load_titles(None, seed=1), load_titles(None, seed=2)

    np.testing.assert_array_equal(one.extra["article_train"], same.extra["article_train"])
    assert not np.array_equal(one.extra["article_train"][::8], other.extra["article_train"][::8])


def test_every_file_format_is_tried() -> None:
    assert WRITERS.keys() | {"digits", "fashion-mnist"} == DATASETS.keys()


@pytest.mark.parametrize("name", WRITERS)
def test_listed_where_it_is(name: str, folder: Path) -> None:
    before = {info.name: info.place for info in available()}
    WRITERS[name](folder)
    after = {info.name: info.place for info in available()}

    assert before[name] is None
    assert Path(present(after[name])) in (folder, folder / name)


@pytest.mark.parametrize("name", ["motionsense", "uci-har", "cora", "medium-titles"])
def test_missing_file_that_cannot_be_downloaded(name: str, folder: Path) -> None:
    (source,) = DATASETS[name].sources

    with pytest.raises(DataError) as caught:
        load(name)

    assert str(folder / source.path) in str(caught.value)
    assert files.VARIABLE in str(caught.value)
    assert source.origin in str(caught.value)
    assert "digits are built in" in str(caught.value)


@pytest.mark.parametrize("name", ["motionsense", "uci-har", "cora"])
def test_spoilt_archive(name: str, folder: Path) -> None:
    (source,) = DATASETS[name].sources
    (folder / source.path).write_bytes(b"PK\x03\x04 not an archive")

    with pytest.raises(DataError, match=source.path):
        load(name)


@pytest.mark.parametrize("name", ["motionsense", "uci-har", "cora"])
def test_archive_of_something_else(name: str, folder: Path) -> None:
    (source,) = DATASETS[name].sources
    np.savez(folder / source.path, other=np.zeros(1))

    with pytest.raises(DataError, match="has no array"):
        load(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not gzip", "cannot be unpacked"),
        (gzip.compress(b"\x00\x00\x08\x03" + bytes(12))[:-9], "cannot be unpacked"),
        (gzip.compress(b"something else"), "not an idx file"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 9, 1, 2])), "2 bytes instead of 9"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2])), "do not belong together"),
    ],
)
def test_spoilt_idx(content: bytes, words: str, folder: Path) -> None:
    write_mnist(folder)
    (folder / "mnist/train-images-idx3-ubyte.gz").write_bytes(content)

    with pytest.raises(DataError, match=words):
        load("mnist")


@pytest.mark.parametrize("content", [b"not xz", lzma.compress(b"123")], ids=["not xz", "no records"])
def test_spoilt_cifar(content: bytes, folder: Path) -> None:
    write_cifar(folder)
    (folder / "cifar10/data_batch_1.bin.xz").write_bytes(content)

    with pytest.raises(DataError, match=r"data_batch_1\.bin\.xz"):
        load("cifar10")


@pytest.mark.parametrize("content", ["name,publication\na b c,d\n", "title,publication\none two,d\n"])
def test_spoilt_titles(content: str, folder: Path) -> None:
    (folder / "medium_titles.csv").write_text(content, encoding="utf-8")

    with pytest.raises(DataError, match=r"medium_titles\.csv"):
        load("medium-titles")


def test_unknown_data_set_lists_the_names() -> None:
    with pytest.raises(ConfigError, match="valid are cifar10, cora, digits"):
        load("mnist2")


def test_impossible_limit() -> None:
    with pytest.raises(DataError, match="at least 1"):
        Limit(train=0)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address it is served at."""
    root = tmp_path / "web"
    root.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_cifar10_is_downloaded_once(
    web: tuple[Path, str], folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, address = web
    content = cifar_archive()
    (root / "cifar.tar.gz").write_bytes(content)
    source = replace(images.CIFAR_ARCHIVE, url=address + "cifar.tar.gz", sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(images, "CIFAR_ARCHIVE", source)
    seen: list[tuple[int, int | None]] = []

    data = load("cifar10", progress=lambda done, total: seen.append((done, total)))
    (root / "cifar.tar.gz").unlink()
    again = load("cifar10")

    assert data.y_train.tolist() == again.y_train.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert seen[-1] == (len(content), len(content))
    assert (own_cache / source.path).read_bytes() == content
    assert list((own_cache / "cifar10").iterdir()) == [own_cache / source.path]


def test_download_with_another_hash_is_not_kept(
    web: tuple[Path, str], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(files.VARIABLE, raising=False)
    root, address = web
    (root / "file").write_bytes(b"tampered")
    source = files.Source("set/file", address + "file", "0" * 64)

    with pytest.raises(DataError, match=f"instead of {'0' * 64}"):
        files.fetch(source)

    assert list((own_cache / "set").iterdir()) == []


def test_offline(web: tuple[Path, str], own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(files.VARIABLE, raising=False)
    _, address = web
    source = files.Source("set/file", address + "absent", "0" * 64)

    with pytest.raises(DataError, match=files.VARIABLE) as caught:
        files.fetch(source)

    assert str(own_cache / "set/file") in str(caught.value)


PRESENT_SHAPES = {
    "digits": ((1000, 1, 8, 8), 10),
    "mnist": ((1000, 1, 28, 28), 10),
    "fashion-mnist": ((1000, 1, 28, 28), 10),
    "cifar10": ((1000, 3, 32, 32), 10),
    "motionsense": ((1000, 9, 128), 6),
    "uci-har": ((1000, 9, 64), 6),
    "cora": ((2708, 1433), 7),
    "medium-titles": ((28_234, 23), 3_419),
}


@pytest.mark.parametrize("name", PRESENT)
def test_what_this_machine_has(name: str) -> None:
    data = load(name, limit=Limit(train=1000, test=100))

    assert (data.x_train.shape, len(data.classes)) == PRESENT_SHAPES[name]
    assert len(data.y_train) == len(data.x_train)
    assert data.y_train.max() < len(data.classes)
