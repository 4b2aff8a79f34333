"""Finds the files of a data set: in the folder the user names, else in a per-user cache, else by download."""

import hashlib
import http.client
import logging
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import DataError

log = logging.getLogger(__name__)

VARIABLE = "FEDWRIGHT_DATA"
Array = NDArray[np.generic]
# Called with bytes so far and bytes in all (None while unknown).
Progress = Callable[[int, int | None], None]
_BLOCK_BYTES = 1 << 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Source:
    """One file of a data set.

    path: where it lies inside a data folder. url, sha256: where it is published and what it must hash to; a file
    that is published in another form only has neither, and `origin` says where that is.
    """

    path: str
    url: str | None = None
    sha256: str | None = None
    origin: str = ""


def cache_folder() -> Path:
    """The per-user cache, under XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedwright" / "datasets"


def folders() -> list[Path]:
    """Where files are looked for, in this order."""
    named = os.environ.get(VARIABLE)
    return [Path(named), cache_folder()] if named else [cache_folder()]


def find(path: str) -> Path | None:
    """The file of that relative path in the first folder that has it."""
    return next((folder / path for folder in folders() if (folder / path).is_file()), None)


def fetch(source: Source, progress: Progress | None = None) -> Path:
    """The file, downloaded into the cache if it is nowhere yet."""
    found = find(source.path)
    if found is not None:
        return found
    if source.url is None or source.sha256 is None:
        raise DataError(f"{missing(source)}; it comes from {source.origin} and cannot be downloaded as it is")
    target = cache_folder() / source.path
    log.info("downloading %s", source.url)
    try:
        _download(source, target, progress)
    except (OSError, http.client.HTTPException) as err:
        if isinstance(err, urllib.error.HTTPError):
            err.close()
        raise DataError(f"{missing(source)}; downloading it from {source.url} failed: {err}") from err
    return target


def missing(source: Source) -> str:
    """Says which file is not there, where to put it and which variable to set."""
    places = " or ".join(str(folder / source.path) for folder in folders())
    return (
        f"data file {source.path} is missing: put it at {places}, or set {VARIABLE} to a folder that has it "
        "(digits are built in; the demo and the suites devices, growth, peers and transport need no files)"
    )


def cached_array(name: str, origin: Path, decode: Callable[[], Array]) -> Array:
    """`decode()`, kept as .npy in the cache for as long as the file it comes from stays the same."""
    stat = origin.stat()
    mark = hashlib.sha256(f"{origin.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    kept = cache_folder() / "decoded" / f"{name}-{mark}.npy"
    if kept.is_file():
        try:
            return np.load(kept, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except (ValueError, EOFError, OSError) as err:
            log.warning("decoding %s again, because %s cannot be read: %s", origin, kept, err)
    array = decode()

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    try:
        _replace(kept, write)
    except OSError as err:
        log.warning("%s is decoded anew each time, because the cache cannot be written: %s", origin, err)
    return array


def load_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """These arrays of an .npz file; an error names the file and what is wrong with it."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except KeyError as err:
        raise DataError(f"{path} has no array {err}; it is not the file this data set needs") from err
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as err:
        raise DataError(f"{path} cannot be read as .npz: {err}; get it again") from err


def _download(source: Source, target: Path, progress: Progress | None) -> None:
    def write(path: Path) -> None:
        digest = hashlib.sha256()
        done = 0
        request = urllib.request.urlopen(str(source.url), timeout=_TIMEOUT_S)
        with request as answer, path.open("wb") as out:
            total = int(answer.headers.get("Content-Length") or 0) or None
            while block := answer.read(_BLOCK_BYTES):
                out.write(block)
                digest.update(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
        if digest.hexdigest() != source.sha256:
            raise DataError(
                f"{source.url} gave a file with SHA-256 {digest.hexdigest()} instead of {source.sha256}; "
                f"it was not kept, try again or {missing(source)}"
            )

    _replace(target, write)


def _replace(target: Path, write: Callable[[Path], object]) -> None:
    """Write beside the target and move into place, so that a file under its own name is always whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
