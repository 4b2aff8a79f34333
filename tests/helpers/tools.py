"""Outside programs a test may need, and the per-user cache where expensive test environments live."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
CONSTRAINTS = REPO / "constraints.txt"
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def require_tool(name: str) -> str:
    """Path of a program; without it the test is skipped, and fails where CI=true promised that it is there."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_SYSTEM_FOLDERS))
    if found is None:
        missing(f"{name} is not installed; run `make setup` as root or install its package")
    return found


def missing(reason: str) -> None:
    """End the test because the machine lacks something."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def cache_folder() -> Path:
    """Per-user folder that outlives a test run."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "fedwright"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, so that two test runs do not build one cache entry at once."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(command: list[str], *, timeout_s: float = 280, env: dict[str, str] | None = None) -> str:
    """Standard output of a command; a failure shows what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_install(python: Path | str, *arguments: str) -> None:
    """`pip install` for an interpreter, at the versions in constraints.txt."""
    run([str(python), "-m", "pip", "install", "-q", "--no-input", "-c", str(CONSTRAINTS), *arguments])


def make_environment(folder: Path) -> Path:
    """An empty virtual environment; returns its interpreter."""
    run([sys.executable, "-m", "venv", str(folder)])
    return folder / "bin" / "python"


def build_wheel(folder: Path) -> Path:
    """The wheel of this source tree, built from a copy so that no leftover of an earlier build gets in."""
    source = folder / "source"
    shutil.copytree(REPO / "fedwright", source / "fedwright", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPO / name, source / name)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-input", "--no-deps", "-w", str(folder), str(source)])
    [wheel] = folder.glob("fedwright-*.whl")
    return wheel
