"""Outside programs a test may need, and the per-user cache where expensive test environments live."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.requirements import Requirement

REPO = Path(__file__).parents[2]
CONSTRAINTS = REPO / "constraints.txt"
READY = ".ready"
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def require_tool(name: str) -> str:
    """Path of a program; without it the test is skipped, and fails where CI=true promised that it is there."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_SYSTEM_FOLDERS))
    if found is None:
        missing(f"{name} is not installed; run `make setup` as root or install its package")
    return found


def missing(reason: str) -> NoReturn:
    """End the test because the machine lacks something."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def cached(name: str, recipe: list[str], build: Callable[[Path], None]) -> Path:
    """A folder that outlives the test run, built once for each recipe; two runs do not build it at the same time."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedwright"
    base.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:16]
    return _built_once(base / f"{name}-{key}", build)


def shared_in_run(name: str, temporary: pytest.TempPathFactory, build: Callable[[Path], object]) -> Path:
    """A folder built once for all processes of a test run, or for this one where pytest was started by itself."""
    run_folder = os.environ.get("FEDWRIGHT_TEST_RUN")
    return _built_once(Path(run_folder) / name if run_folder else temporary.mktemp("shared") / name, build)


def _built_once(folder: Path, build: Callable[[Path], object]) -> Path:
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / READY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / READY).touch()
    return folder


def run(
    command: list[str], *, timeout_s: float = 280, env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Standard output of a command; a failure shows what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env, cwd=cwd, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_install(python: Path | str, *arguments: str) -> None:
    """`pip install` for an interpreter, at the versions in constraints.txt."""
    run([str(python), "-m", "pip", "install", "-q", "--no-input", "-c", str(CONSTRAINTS), *arguments])


def make_environment(folder: Path, *, python: str = sys.executable) -> Path:
    """An empty virtual environment; returns its interpreter."""
    run([python, "-m", "venv", str(folder)])
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


def extra_requirements(wheel: Path, extra: str, **environment: str) -> list[str]:
    """What the wheel's metadata asks for with an extra, on this machine but for markers given in `environment`."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    parsed = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    chosen = [r for r in parsed if r.marker is not None and r.marker.evaluate({"extra": extra, **environment})]
    return [f"{r.name}{r.specifier}" for r in chosen]
