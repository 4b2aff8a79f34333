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
SUITES = ".benchmarks.suites."


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
    """Where the result of a job is kept, or None outside of such a block; another program has another place.

    Of the suites only the one that watches the job counts: what others make of their results changes nothing here.
    """
    watch, module = (None, "") if job.watch is None else (job.watch.__qualname__, job.watch.__module__)
    suite = module.rpartition(".")[2] if SUITES in module else ""
    return _place([job.name, job.seed, job.config, job.share, job.parts, watch], _program(suite))


def place_named(words: Any) -> Path | None:
    """The same for any job that these words, as JSON has them, tell from all others."""
    return _place(words, _program(None))


def _place(words: Any, program: str) -> Path | None:
    if not _open:
        return None
    text = json.dumps([program, words], sort_keys=True)
    return _open[-1] / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@lru_cache(maxsize=4)
def _program(suite: str | None) -> str:
    """A digest of all sources, or of those with one suite at most: what another version found is not taken for ours."""
    digest = hashlib.sha256()
    for path in program_files():
        if suite is None or path.parent.name != "suites" or path.stem == suite:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def program_files() -> list[Path]:
    """The sources of the package, in order; most lie behind links to folders, which `rglob` does not follow."""
    root = Path(fedwright.__file__).parent
    walked = os.walk(root, followlinks=True)
    return sorted(Path(folder) / name for folder, _, names in walked for name in names if name.endswith(".py"))
