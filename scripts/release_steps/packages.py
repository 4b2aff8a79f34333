"""Wheel and source distribution, the same bytes whenever and wherever they are built from the same sources."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

# The date of every file in a package; a later one says nothing about its content.
EPOCH = 1_700_000_000
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build_packages(root: Path, folder: Path) -> list[Path]:
    """The wheel and the source distribution of a tree, built from a clean copy of it."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source"
    shutil.copytree(root / "fedwright", source / "fedwright", ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in FILES:
        shutil.copyfile(root / name, source / name)
    for path in source.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    call = [sys.executable, "-m", "build", "--outdir", str(folder), str(source)]
    subprocess.run(call, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})
    shutil.rmtree(source)
    [archive] = folder.glob("*.tar.gz")
    archive.write_bytes(same_bytes(archive.read_bytes()))
    return sorted([archive, *folder.glob("*.whl")])


def same_bytes(archive: bytes) -> bytes:
    """A source distribution without what differs from build to build: order, dates, owners."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as before,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = EPOCH, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=EPOCH, filename="") as file:
        file.write(plain.getvalue())
    return packed.getvalue()
