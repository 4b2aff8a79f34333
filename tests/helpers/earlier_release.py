"""The release that this one must get along with: its source tree, taken from the history of the repository."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from helpers.tools import REPO

# Recorded as tests/protocol/recorded/0.1.0.json; a later one takes its place when devices of this one are gone.
COMMIT = "7e8bc8820eddddc59deb5652a2fda3f95ff51d59"


def earlier_tree(folder: Path) -> Path:
    """The sources of that release; without the history the test is skipped, and its recorded messages remain."""
    if _git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
        pytest.skip("this is no clone with its history; tests/protocol/test_recorded_messages.py runs nevertheless")
    packed = _git("archive", COMMIT)
    assert packed.returncode == 0, packed.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def command_of(tree: Path | None) -> tuple[list[str], dict[str, str]]:
    """How `fedwright` of a source tree is started, None for the one under test; its environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if tree is not None:
        environment["PYTHONPATH"] = str(tree)
    return [sys.executable, "-m", "fedwright"], environment


def _git(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", str(REPO), *words], capture_output=True, check=False)
