"""The device's journal: which task it has, how it answered, which are over. Survives a power cut at any moment."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct, structs

from fedwright.protocol import codec
from fedwright.protocol.errors import IdentityTaken
from fedwright.protocol.messages import Refusal, Task, Update
from fedwright.protocol.support.files import lock_folder, replace_file
from fedwright.protocol.support.unreadable import UNREADABLE

log = logging.getLogger(__name__)

# A task that was delivered twice arrives again soon or never; this many ids are plenty.
KEEP_FINISHED = 64
# A task that twice ended the process that did it does so again.
MAX_ATTEMPTS = 2


class JournalEntry(Struct, frozen=True):
    """The task in hand; `answer` is there once the work is done and only the acknowledgement is missing.

    attempts: how often it was begun without getting further than `step` steps. problem: how the last of them ended.
    taken: of the time that it was taken in hand; a task that a server sends once more, after others, has another.
    """

    task: Task
    answer: Update | Refusal | None = None
    attempts: int = 0
    step: int = 0
    problem: str = ""
    taken: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether it was begun often enough."""
        return self.attempts >= MAX_ATTEMPTS


class _File(Struct, frozen=True):
    entry: JournalEntry | None = None
    finished: Sequence[str] = ()


class Journal:
    """One file, replaced as a whole and synced at each change; the folder is locked against a second agent."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "journal"
        self._lock = _lock(folder)
        self._file = _read(self._path)
        # How many tasks this life of the agent has taken, and what became of them.
        self.counts: Counter[str] = Counter()

    @property
    def entry(self) -> JournalEntry | None:
        """The task in hand."""
        return self._file.entry

    def is_finished(self, task: str) -> bool:
        """Whether this task was done and acknowledged before."""
        return task in self._file.finished

    def accept(self, task: Task) -> None:
        """Take a task in hand; whatever was in hand before is given up."""
        self.counts["taken"] += 1
        self._write(structs.replace(self._file, entry=JournalEntry(task, taken=codec.new_id())))

    def begin(self, step: int) -> bool:
        """Note on disk that the task is being begun, with so many steps done; False when it was often enough."""
        entry = self._file.entry
        if entry is None:
            return False
        if step > entry.step:
            entry = structs.replace(entry, attempts=0, step=step)
        if entry.is_hopeless:
            return False
        self._write(structs.replace(self._file, entry=structs.replace(entry, attempts=entry.attempts + 1)))
        return True

    def crashed(self, problem: str) -> None:
        """Remember how an attempt ended."""
        self.counts["crashed"] += 1
        if self._file.entry is not None:
            self._write(structs.replace(self._file, entry=structs.replace(self._file.entry, problem=problem)))

    def excuse(self) -> None:
        """An attempt was broken off in good order: it does not count."""
        entry = self._file.entry
        if entry is not None and entry.attempts:
            self._write(structs.replace(self._file, entry=structs.replace(entry, attempts=entry.attempts - 1)))

    def answer(self, answer: Update | Refusal) -> None:
        """The work is done: remember how it ended until the server has it too."""
        self.counts["refused" if isinstance(answer, Refusal) else "done"] += 1
        if self._file.entry is not None:
            self._write(structs.replace(self._file, entry=structs.replace(self._file.entry, answer=answer)))

    def finish(self) -> None:
        """The server has the answer; the hands are free."""
        self.counts["acknowledged"] += 1
        if self._file.entry is not None:
            finished = [*self._file.finished, self._file.entry.task.task][-KEEP_FINISHED:]
            self._write(_File(None, finished))

    def forsake(self) -> JournalEntry | None:
        """Give up a task of all devices of a lost edge, and return it; what was answered is not done elsewhere."""
        entry = self._file.entry
        if entry is None or entry.task.shard is None:
            return None
        over = [entry.task.task]
        if entry.answer is not None and entry.task.pool is not None and entry.task.pool.stage is not None:
            over.append(entry.task.pool.stage)
        self._write(_File(None, [*self._file.finished, *over][-KEEP_FINISHED:]))
        return entry

    def close(self) -> None:
        """Let another agent use the folder."""
        self._lock.close()

    def _write(self, file: _File) -> None:
        """Memory first: with a full disk the agent goes on, it only could not continue after a restart."""
        self._file = file
        try:
            replace_file(self._path, msgspec.msgpack.encode(file))
        except OSError as err:
            log.warning("the journal cannot be written (%s); free some space at %s", err.strerror, self._path.parent)


def read_entry(folder: Path) -> JournalEntry | None:
    """The task in hand of an agent that does not run now, or is stopped."""
    return _read(folder / "journal").entry


def _lock(folder: Path) -> IO[bytes]:
    lock = lock_folder(folder)
    if lock is None:
        raise IdentityTaken(
            f"another agent on this machine uses the state folder {folder}; stop it or give this one another --state"
        )
    return lock


def _read(path: Path) -> _File:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except UNREADABLE:
        # Written by another release, or a damaged disk: the server sends the task again.
        path.replace(path.with_suffix(".unreadable"))
        return _File()
