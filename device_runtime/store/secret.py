"""Random bytes that a device keeps to itself, the same in every life of its agent."""

import os
from pathlib import Path


def kept_secret(path: Path, size: int) -> bytes:
    """The secret at `path`, made when there is none; nobody else on the machine may read it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".new")
        part.touch(mode=0o600)
        part.write_bytes(os.urandom(size))
        # In one act: after a power cut there is a whole secret or none.
        part.replace(path)
    return path.read_bytes()
