"""The wheel tried in fresh environments: every Python that is here, and ARM64 under qemu."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# What tests install in place of a wheel of their own.
WHEEL = "FEDWRIGHT_WHEEL"


def find_python(version: str) -> str | None:
    """An interpreter of this version, on the path or as pyenv keeps them."""
    kept = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    for python in filter(None, [shutil.which(f"python{version}"), *map(str, kept)]):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


def try_install(python: str, wheel: Path) -> str:
    """Install the device's part in a fresh environment and start it; what it calls itself."""
    # The sources of this tree must not stand in for what was installed.
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True, env=bare)
        own = Path(folder) / "bin"
        target = f"fedwright[device] @ {wheel.resolve().as_uri()}"
        calls: list[list[str | Path]] = [
            [own / "python", "-m", "pip", "install", "-q", "--no-input", target],
            [own / "python", "-c", "import fedwright; fedwright.Trainer, fedwright.Device"],
            [own / "fedwright", "device", "run", "--help"],
        ]
        for call in calls:
            subprocess.run(call, check=True, env=bare, cwd=folder, stdout=subprocess.DEVNULL)
        said = subprocess.run([own / "fedwright", "--version"], check=True, env=bare, capture_output=True, text=True)
        return said.stdout.strip()


def try_installs(wheel: Path) -> Iterator[str]:
    """Try the wheel with every Python that is here; a line about each."""
    for version in PYTHONS:
        python = find_python(version)
        if python is None:
            yield f"Python {version} is not here, so {wheel.name} was not tried with it"
        else:
            yield f"{try_install(python, wheel)} installs and starts on Python {version}"


def try_on_arm64(wheel: Path, root: Path) -> None:
    """Install this wheel on an emulated board and train two rounds with it, by the tests that do so."""
    call = [sys.executable, "-m", "pytest", "-q", "tests/e2e/test_arm64_install.py"]
    # Under CI a test whose tools are missing fails instead of being left out.
    subprocess.run(call, cwd=root, check=True, env={**os.environ, WHEEL: str(wheel.resolve()), "CI": "true"})
