"""Numbers the lives of the servers that sign with one key, so that devices can tell later orders from earlier ones."""

import time
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file

EPOCH = "epoch"
# What messages carry.
MOST = 2**53


def next_epoch(trust: Path) -> int:
    """A number above all that the folder of trust gave before, on disk before it is used.

    It is the second of the call where that is above them, so that a folder that was put back from a copy, or lies on
    two machines, goes on above what it has forgotten. The clock alone decides nothing: set back, it is not looked at.
    """
    file = trust / EPOCH
    try:
        last = int(file.read_text()) if file.exists() else 0
    except ValueError as err:
        raise ConfigError(
            f"{file} holds no number; put a copy of it back, or remove it and restart the devices"
        ) from err
    if not 0 <= last < MOST:
        raise ConfigError(f"{file} holds {last}, which no server wrote; remove it and restart the devices")
    epoch = max(last + 1, int(time.time()))
    replace_file(file, f"{epoch}\n".encode())
    return epoch
