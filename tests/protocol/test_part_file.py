"""Part files beyond what downloads show: how many stay open, and that none is forgotten."""

import hashlib
import os
from pathlib import Path

import psutil
import pytest

from fedwright.protocol.part_file import FLUSH_BYTES, KEPT_OPEN, PartFile

CHUNK = 1024


def make(folder: Path, name: str = "blob", *, flush: bool = False, chunk_bytes: int = CHUNK) -> PartFile:
    return PartFile(folder / f"{name}.part", folder / f"{name}.marks", chunk_bytes=chunk_bytes, flush=flush)


def open_files(folder: Path) -> int:
    return sum(Path(file.path).parent == folder for file in psutil.Process().open_files())


def test_few_part_files_stay_open_and_all_are_written(tmp_path: Path) -> None:
    files = [make(tmp_path, str(number)) for number in range(KEPT_OPEN + 5)]
    for number, file in enumerate(files):
        file.write(1, bytes([number]) * CHUNK)

    assert open_files(tmp_path) == 2 * KEPT_OPEN
    held = [file.held([b"", hashlib.sha256(bytes([n]) * CHUNK).digest()]) for n, file in enumerate(files)]
    assert held == [{1}] * len(files)


def test_a_part_file_that_is_dropped_lets_go(tmp_path: Path) -> None:
    for number in range(3 * KEPT_OPEN):
        make(tmp_path, str(number)).write(0, b"x")

    assert open_files(tmp_path) == 0
    last = make(tmp_path, "last")
    last.write(0, b"x")
    assert open_files(tmp_path) == 2
    last.close()
    assert open_files(tmp_path) == 0


def test_a_file_that_cannot_be_opened_takes_nobodys_place(tmp_path: Path) -> None:
    for number in range(2 * KEPT_OPEN):
        with pytest.raises(FileNotFoundError):
            make(tmp_path / "absent", str(number)).write(0, b"x")

    kept = make(tmp_path)
    kept.write(0, b"x")
    assert open_files(tmp_path) == 2
    kept.close()


def test_what_is_behind_the_end_is_cut_off(tmp_path: Path) -> None:
    file = make(tmp_path)
    file.write(0, b"a" * CHUNK)
    file.write(1, b"b" * CHUNK)

    assert file.complete(CHUNK + 3)
    assert file.part.read_bytes() == b"a" * CHUNK + b"bbb"
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("flush", [True, False])
def test_the_disk_begins_early_when_the_blob_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: bool
) -> None:
    begun = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _handle, start, size, _advice: begun.append((start, size)))
    size = FLUSH_BYTES // 4
    file = make(tmp_path, flush=flush, chunk_bytes=size)

    for index in (1, 0, 3, 2, 4):
        file.write(index, os.urandom(size))
    file.close()

    assert begun == ([(0, FLUSH_BYTES)] if flush else [])
