"""Tiny data sets in the formats of the real ones."""

import gzip
import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.simulation.datasets import images


def save_points(path: Path, *, seed: int) -> None:
    """Points whose class is the sign of their sum, as a device's npz file."""
    x = np.random.default_rng(seed).normal(size=(60, 4)).astype(np.float32)
    np.savez(path, x=x, y=(x.sum(axis=1) > 0).astype(np.int64))


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def write_mnist(folder: Path, train: int = 5, test: int = 2) -> None:
    for part, count in (("train", train), ("t10k", test)):
        pixels = np.arange(count * 784).reshape(count, 28, 28) % 256
        write_idx(folder / f"mnist/{part}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"mnist/{part}-labels-idx1-ubyte.gz", np.arange(count) % 10)


def cifar_batch(count: int, first_label: int) -> bytes:
    records = np.zeros((count, 3073), np.uint8)
    records[:, 0] = (first_label + np.arange(count)) % 10
    records[:, 1 : 1 + 1024] = 255
    return records.tobytes()


def write_cifar(folder: Path) -> None:
    (folder / "cifar10").mkdir()
    for number in (1, 2):
        (folder / f"cifar10/data_batch_{number}.bin.xz").write_bytes(lzma.compress(cifar_batch(4, number)))
    (folder / "cifar10/test_batch.bin").write_bytes(cifar_batch(3, 9))


def write_motionsense(folder: Path) -> None:
    lengths = np.array([200, 300, 100, 128])
    np.savez(
        folder / "motionsense.npz",
        signal=np.arange(lengths.sum() * 9).reshape(-1, 9).astype(np.float16) % 100,
        start=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32),
        length=lengths.astype(np.int32),
        subject=np.array([4, 9, 9, 4], np.int16),
        activity=np.array([0, 1, 1, 0], np.int8),
        trial=np.array([1, 2, 3, 11], np.int16),
        activities=np.array(["downstairs", "upstairs"]),
    )


def write_uci_har(folder: Path) -> None:
    arrays: dict[str, Any] = {}
    for part, people in (("train", [1, 1, 5]), ("test", [2, 2])):
        arrays[f"X_{part}"] = np.ones((len(people), 9, 64), np.float16)
        arrays[f"y_{part}"] = np.arange(len(people)).astype(np.int8)
        arrays[f"subject_{part}"] = np.array(people, np.int8)
    np.savez(folder / "uci_har.npz", activities=np.array(["WALKING", "UP", "DOWN"]), **arrays)


def write_cora(folder: Path) -> None:
    np.savez(
        folder / "cora.npz",
        indptr=np.array([0, 2, 3, 3]),
        indices=np.array([0, 3, 1]),
        shape=np.array([3, 4]),
        labels=np.array([0, 6, 2], np.int8),
        edges=np.array([[0, 1], [1, 2]]),
    )


def write_titles(folder: Path) -> None:
    made = [f"How to Write Code, Part {chr(97 + i % 26)} don’t stop" for i in range(60)]
    rows = [f'"{title}",{"The Startup" if i % 3 else "UX Collective"}' for i, title in enumerate(made)]
    lines = ["title,publication", *rows, "Two words,The Startup"]
    (folder / "medium_titles.csv").write_text("\n".join(lines), encoding="utf-8")


WRITERS = {
    "mnist": write_mnist,
    "cifar10": write_cifar,
    "motionsense": write_motionsense,
    "uci-har": write_uci_har,
    "cora": write_cora,
    "medium-titles": write_titles,
}


def cifar_archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number, batch in enumerate([*images.CIFAR_TRAIN, images.CIFAR_TEST]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{batch}.bin")
            content = cifar_batch(2, number)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
