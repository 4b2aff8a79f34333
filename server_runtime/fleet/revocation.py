"""Who was shut out: files in the folder of trust, and the gate that makes a running server deaf to them.

`issued.list` says whose certificate has which serial number, `revoked.list` names who is shut out now, and
`broker/revoked.crl` holds the serial numbers that are void for ever. A device that is enrolled anew gets a new
serial number and leaves `revoked.list`.
"""

import logging
import os
from pathlib import Path

from fedwright.protocol.support.files import replace_file

log = logging.getLogger(__name__)

ISSUED = "issued.list"
REVOKED = "revoked.list"
CRL = "revoked.crl"
# How often the broker's own guard and the store of device keys look whether somebody was shut out.
LOOK_S = 1.0


def note_issued(folder: Path, name: str, serial: int) -> None:
    """Remember a certificate, so that it can be revoked when its file has left this machine."""
    with (folder / ISSUED).open("a", encoding="utf-8") as file:
        file.write(f"{name} {serial:x}\n")


def read_issued(folder: Path, name: str) -> set[int]:
    """Serial numbers of the certificates that were made for a name."""
    file = folder / ISSUED
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return {int(serial, 16) for whose, serial in lines if whose == name}


def read_revoked(folder: Path) -> list[str]:
    """Names that are shut out now, sorted."""
    file = folder / REVOKED
    return sorted(file.read_text(encoding="utf-8").split()) if file.exists() else []


def write_revoked(folder: Path, names: set[str]) -> None:
    """Say who is shut out from now on."""
    replace_file(folder / REVOKED, "".join(f"{name}\n" for name in sorted(names)).encode())


class Gate:
    """Tells a running server whom to ignore; without a folder it is open to all."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None
        self._barred: frozenset[str] = frozenset()
        self._boots: dict[str, str] = {}
        self._told: set[str] = set()

    def bars(self, device: str) -> bool:
        """Whether a device was shut out."""
        self._look()
        if device not in self._barred:
            return False
        self._tell(device)
        return True

    def note(self, device: str, boot: str) -> None:
        """Remember which boot of a device the server has heard."""
        self._boots[device] = boot

    def leavers(self) -> list[tuple[str, str]]:
        """Devices that were heard before they were shut out, with their boots; each is told once."""
        self._look()
        leavers = [(device, self._boots.pop(device)) for device in sorted(self._barred & self._boots.keys())]
        for device, _ in leavers:
            self._tell(device)
        return leavers

    def _tell(self, device: str) -> None:
        """Warn once of a device that is here, or tries to be; not of everybody who was ever shut out."""
        if device not in self._told:
            self._told.add(device)
            text = "device %s was revoked; what it says is ignored until it is enrolled anew"
            log.warning(text, device, extra={"device": device, "fate": "revoked"})

    def _look(self) -> None:
        """Read the list again when it is another file than before; asked for each message, so it costs one stat."""
        if self._folder is None:
            return
        seen = _version(self._folder / REVOKED)
        if seen != self._seen:
            self._seen = seen
            self._barred = frozenset(read_revoked(self._folder))
            self._told &= self._barred


def _version(file: Path) -> tuple[int, int, int] | None:
    """What changes whenever a file is replaced; None while there is none."""
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
