"""Finished jobs of a suite on disc, so that one that was interrupted goes on and ends in the same table."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import fedwright
from fedwright.simulation.datasets.files import cache_folder

_open: list[Path] = []


@contextmanager
def keeping(suite: str) -> Iterator[None]:
    """Jobs that end inside this block are kept until the whole block ended well."""
    folder = cache_folder() / "bench" / suite
    _open.append(folder)
    try:
        yield
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        _open.remove(folder)


def place_of(job: Any) -> Path | None:
    """Where the result of a job is kept, or None outside of such a block; another program has another place."""
    watch = None if job.watch is None else job.watch.__qualname__
    return place_named([job.name, job.seed, job.config, job.share, job.parts, watch])


def place_named(words: Any) -> Path | None:
    """The same for any job that these words, as JSON has them, tell from all others."""
    if not _open:
        return None
    text = json.dumps([_program(), words], sort_keys=True)
    return _open[-1] / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@lru_cache(maxsize=1)
def _program() -> str:
    """A digest of all sources: what another version of the program found is not taken for its own."""
    digest = hashlib.sha256()
    for path in program_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def program_files() -> list[Path]:
    """The sources of the package, in order; most lie behind links to folders, which `rglob` does not follow."""
    root = Path(fedwright.__file__).parent
    walked = os.walk(root, followlinks=True)
    return sorted(Path(folder) / name for folder, _, names in walked for name in names if name.endswith(".py"))
