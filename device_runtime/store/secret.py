"""Random bytes that a device keeps to itself, the same in every life of its agent."""

import os
import stat
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import write_private


def kept_secret(path: Path, size: int) -> bytes:
    """The secret at `path`, made when there is none; nobody else on the machine may read it.

    ConfigError for one of another length: what is drawn from too few bytes can be guessed.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, os.urandom(size))
    secret = path.read_bytes()
    if len(secret) != size:
        raise ConfigError(
            f"{path} holds {len(secret)} bytes instead of {size}; put a copy of it back, or remove it, and what this "
            f"device tells of its data is drawn anew"
        )
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    return secret
