"""Files that survive a power cut, files that nobody else reads, and folders that belong to one process at a time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedwright.protocol.errors import DeviceError

LOCK_TRIES = 5
LOCK_TRY_S = 0.02


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that after a crash either the old or the new content is there, never a mix."""
    part = path.with_suffix(".new")
    with part.open("wb") as file:
        _put(file, data, path)


def write_private(path: Path, data: str | bytes) -> None:
    """Put `data` at `path` as `replace_file` does, for nobody but its owner to read."""
    part = path.with_suffix(".new")
    # One that is left of a crash, or that somebody laid there, may be open to others.
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        _put(file, data.encode() if isinstance(data, str) else data, path)


def _put(file: IO[bytes], data: bytes, path: Path) -> None:
    """Write a draft, and give it its name once it is on the disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def explained_full_disk(folder: Path) -> Iterator[None]:
    """What cannot be written in the block is a DeviceError that says where."""
    try:
        yield
    except OSError as err:
        raise DeviceError(f"blobs cannot be written to {folder} ({err.strerror}); free some space there") from err


def lock_folder(folder: Path) -> IO[bytes] | None:
    """A lock that lasts until it is closed or the process ends, however it ends; None when another process has it."""
    lock = (folder / "lock").open("wb")
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Whoever only looks whether somebody is at work here holds it for a moment.
            time.sleep(LOCK_TRY_S)
        else:
            return lock
    lock.close()
    return None
