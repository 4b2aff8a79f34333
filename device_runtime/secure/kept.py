"""What a device must not forget while its change is in a sum: the change, its secrets, and what it has told whom.

Everything is on the disk before an answer leaves: whoever asks again, after any crash, gets the same or nothing.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from fedwright.protocol.errors import DeviceError, ProtocolError
from fedwright.protocol.messages import SumTerms
from fedwright.protocol.secure.part import ROOT_BYTES
from fedwright.protocol.support.files import write_private
from fedwright.protocol.support.unreadable import UNREADABLE

if TYPE_CHECKING:
    from fedwright.device_runtime.secure.change import Row

# A sum that comes to nothing is begun anew; more often than this nobody means well.
MOST_SESSIONS = 8
LENGTH_BYTES = 4


class Session(Struct, frozen=True):
    """One attempt at a sum. root: this device's secret of it; all else is what the device was told, once."""

    name: str
    root: bytes
    roster: bytes = b""
    sharers: list[str] = []
    sealed: dict[str, bytes] = {}
    present: list[str] = []


class Change(Struct, frozen=True):
    """A task's change that waits for its sum; it goes under masks in one session.

    whole: it is counts, which are added up as they are.
    """

    task: str
    terms: SumTerms
    work: bytes
    weight: int
    chunk_bytes: int
    sessions: dict[str, Session] = {}
    whole: bool = False

    def reach(self, members: int) -> float:
        """The largest entry that a sum of so many has room for."""
        from fedwright.protocol.secure.masks import whole_reach

        return whole_reach(members) if self.whole else self.terms.reach


class KeptChange:
    """The change of the last task, in the device's folder; the one before goes when it comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sums"
        if self._folder.is_file():
            # An earlier release kept its notes of sums there.
            self._folder.unlink()
        self._file = self._folder / "state"
        self._change, self._end = _read(self._file)

    def put(self, change: Change, result: Path) -> None:
        """Take the row in the file `result`, which moves here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with result.open("rb+") as file:
            os.fsync(file.fileno())
        result.replace(self._row(change.task))
        record = _record(change)
        write_private(self._file, record)
        self._change, self._end = change, len(record)
        for other in self._folder.glob("row-*"):
            if other != self._row(change.task):
                other.unlink()

    def has(self, task: str) -> bool:
        """Whether the change of this task is here."""
        return self._change is not None and self._change.task == task

    def of(self, task: str) -> Change:
        """The change of a task; ProtocolError when it is not here."""
        if self._change is None or self._change.task != task:
            raise ProtocolError("this device has no change of that task, or no longer; begin another round")
        return self._change

    def row(self, change: Change) -> "Row":
        """Its numbers."""
        import numpy as np

        try:
            return np.fromfile(self._row(change.task), "<f4")
        except OSError as err:
            raise DeviceError(f"the change of task {change.task} cannot be read ({err.strerror})") from err

    def session(self, change: Change, name: str) -> Session:
        """A session that this device has given keys for."""
        if name not in change.sessions:
            raise ProtocolError("this device has given no keys for that sum; ask for them first")
        return change.sessions[name]

    def begin(self, change: Change, name: str) -> Session:
        """A session of this name, with a secret of its own."""
        if name in change.sessions:
            return change.sessions[name]
        check_free(change, name)
        if len(change.sessions) >= MOST_SESSIONS:
            raise ProtocolError(f"{MOST_SESSIONS} sums of this change were begun already; begin another round")
        session = Session(name, os.urandom(ROOT_BYTES))
        # Lost with the power, it is a session that this device knows nothing of: its keys have hidden nothing yet.
        self.save(change, session, synced=False)
        return session

    def save(self, change: Change, session: Session, *, synced: bool = True) -> None:
        """Remember what a session was told."""
        self._save(structs.replace(change, sessions={**change.sessions, session.name: session}), synced=synced)

    def forget(self, task: str) -> None:
        """The sum is over: neither the change nor a secret of it stays."""
        if self._change is not None and self._change.task == task:
            self._change = None
            self._file.unlink(missing_ok=True)
            self._row(task).unlink(missing_ok=True)

    def _save(self, change: Change, *, synced: bool) -> None:
        # On the disk first: what is not there must not be told. Behind what is there, one wait for the disk is enough.
        record = _record(change)
        with self._file.open("r+b") as file:
            file.seek(self._end)
            file.write(record)
            file.truncate()
            file.flush()
            if synced:
                os.fsync(file.fileno())
        self._change, self._end = change, self._end + len(record)

    def _row(self, task: str) -> Path:
        return self._folder / f"row-{task}"


def check_free(change: Change, session: str) -> None:
    """Raise ProtocolError when a change is under masks in another sum: whether that is opened its others decide."""
    if any(known.sharers and name != session for name, known in change.sessions.items()):
        raise ProtocolError("this change is in a sum already that may be opened; it goes into no other")


def same_or_first(known: object, told: object, what: str) -> None:
    """Raise ProtocolError unless a session is told the same as before, or for the first time."""
    if known and known != told:
        raise ProtocolError(f"this sum had other {what} before; it is not answered twice")


def _record(change: Change) -> bytes:
    data = msgspec.msgpack.encode(change)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def _read(file: Path) -> tuple[Change | None, int]:
    """What was written last, and where it ends; a torn end was never told."""
    try:
        data = file.read_bytes()
    except OSError:
        return None, 0
    found, end = None, 0
    while len(data) >= end + LENGTH_BYTES:
        start = end + LENGTH_BYTES
        size = int.from_bytes(data[end:start], "big")
        try:
            found = msgspec.msgpack.decode(data[start : start + size], type=Change)
        except UNREADABLE:
            break
        end = start + size
    # Where nothing can be read, nothing of it is told any more, which is safe.
    return found, end
