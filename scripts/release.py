"""`make release`: build, check, install in fresh environments, list licences, sign; nothing is published."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from fedwright import __version__
from release_steps.changelog import released
from release_steps.licences import bill_of_materials, licence_list, packages
from release_steps.packages import build_packages

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def build_twice(out: Path) -> list[Path]:
    """The packages, if a second build gives the same bytes."""
    with tempfile.TemporaryDirectory() as second:
        made, again = build_packages(ROOT, out), build_packages(ROOT, Path(second))
        for first, other in zip(made, again, strict=True):
            if first.read_bytes() != other.read_bytes():
                raise SystemExit(f"release: {first.name} differs from build to build; find what changes in it")
    return made


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


def try_installs(wheel: Path) -> list[str]:
    """Try the wheel with every Python that is here; which those are."""
    tried = []
    for version in PYTHONS:
        python = find_python(version)
        if python is None:
            print(f"release: Python {version} is not here, so {wheel.name} was not tried with it")
            continue
        print(f"release: {try_install(python, wheel)} installs and starts on Python {version}")
        tried.append(version)
    return tried


def sign(files: list[Path], key: str | None) -> None:
    """Write the hashes of all files, and sign that list with a GnuPG key if one is named."""
    sums = files[0].parent / "SHA256SUMS"
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]
    sums.write_text("\n".join(lines) + "\n")
    if key is None:
        print("release: SHA256SUMS is not signed; name a key with ARGS='--key ID'")
        return
    subprocess.run(["gpg", "--batch", "--yes", "--armor", "--local-user", key, "--detach-sign", str(sums)], check=True)


def main() -> None:
    """All steps in their order; the first that fails ends it."""
    parser = argparse.ArgumentParser(description="Make a release in a folder; nothing is published.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--key", help="the GnuPG key to sign with")
    parser.add_argument("--arm64", action="store_true", help="also install and train on ARM64 under qemu (minutes)")
    parser.add_argument("--changelog", action="store_true", help="turn Unreleased into the section of this version")
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    made = build_twice(args.out)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, made)], check=True)
    try_installs(next(file for file in made if file.suffix == ".whl"))
    if args.arm64:
        subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/e2e/test_arm64_install.py"], cwd=ROOT, check=True)
    found = packages()
    (args.out / "sbom.cdx.json").write_text(bill_of_materials(found))
    (args.out / "LICENCES.md").write_text(licence_list(found))
    if args.changelog:
        log = ROOT / "CHANGELOG.md"
        log.write_text(released(log.read_text(), __version__, datetime.now(timezone.utc).date().isoformat()))
    sign([*made, args.out / "sbom.cdx.json", args.out / "LICENCES.md"], args.key)
    print(f"release: {__version__} is in {args.out}")


if __name__ == "__main__":
    main()
