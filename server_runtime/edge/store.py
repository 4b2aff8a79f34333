"""What an edge must not forget: tasks before they are passed on, answers before a device hears that they are held."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from fedwright.protocol import codec
from fedwright.protocol.messages import Refusal, Task, Update
from fedwright.server_runtime.rounds.store.transaction import transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS task (
    id TEXT PRIMARY KEY, device TEXT NOT NULL, payload BLOB, answer BLOB, state TEXT NOT NULL, bundle TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS bundle (id TEXT PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""

ALONE = "alone"
State = Literal["open", "answered", "refused", "recalled", "done"]


@dataclass(frozen=True)
class TaskRow:
    """One task of one device.

    payload: the server's envelope around the task; None for an answer that came before the task did, with a device
    that was at another edge. answer: the device's envelope, and once the task is done the server's acknowledgement.
    bundle: the pooled update that the answer went into, or ALONE when it goes up as it came.
    """

    id: str
    device: str
    payload: bytes | None
    answer: bytes | None = None
    state: State = "open"
    bundle: str = ""

    @cached_property
    def task(self) -> Task | None:
        """The task, when it is known."""
        body = None if self.payload is None else codec.decode(self.payload).body
        return body if isinstance(body, Task) else None

    @cached_property
    def reply(self) -> Update | Refusal | None:
        """The device's answer."""
        body = None if self.answer is None else codec.decode(self.answer).body
        return body if isinstance(body, Update | Refusal) else None


class EdgeStore:
    """Rows and bundles in one SQLite file, with a copy in memory; every `save_*` is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)
        found = self._db.execute("SELECT id, device, payload, answer, state, bundle FROM task ORDER BY rowid")
        self._rows = {row[0]: TaskRow(*row) for row in found}
        packed = self._db.execute("SELECT id, message FROM bundle")
        self._bundles = {name: msgspec.msgpack.decode(message, type=Update) for name, message in packed}

    def row(self, task: str) -> TaskRow | None:
        """The row of a task."""
        return self._rows.get(task)

    def rows(self) -> list[TaskRow]:
        """All rows, oldest first."""
        return list(self._rows.values())

    def bundle(self, name: str) -> Update | None:
        """A pooled update by its name."""
        return self._bundles.get(name)

    def bundles(self) -> dict[str, Update]:
        """Pooled updates that the server has not acknowledged in full."""
        return dict(self._bundles)

    def save(self, *rows: TaskRow) -> None:
        """Keep rows, all in one act."""
        with transaction(self._db):
            self._write(rows)

    def remove(self, tasks: Sequence[str]) -> None:
        """Forget rows."""
        self._db.executemany("DELETE FROM task WHERE id = ?", [(task,) for task in tasks])
        for task in tasks:
            del self._rows[task]

    def save_bundles(self, updates: Sequence[Update]) -> None:
        """Keep pooled updates under the names of their first tasks and mark the rows that are in them, in one act."""
        rows = [replace(self._rows[part.task], bundle=update.task) for update in updates for part in update.parts]
        packed = [(update.task, msgspec.msgpack.encode(update)) for update in updates]
        with transaction(self._db):
            self._db.executemany("INSERT OR REPLACE INTO bundle VALUES (?, ?)", packed)
            self._write(rows)
        self._bundles.update({update.task: update for update in updates})

    def drop_bundle(self, name: str, *rows: TaskRow) -> None:
        """Forget a pooled update and keep rows as they are now, in one act."""
        with transaction(self._db):
            self._db.execute("DELETE FROM bundle WHERE id = ?", (name,))
            self._write(rows)
        self._bundles.pop(name, None)

    def note(self, name: str) -> bytes | None:
        """Something kept under a name, such as who is in which cluster."""
        row = self._db.execute("SELECT value FROM note WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def save_note(self, name: str, value: bytes) -> None:
        """Keep something under a name."""
        self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _write(self, rows: Iterable[TaskRow]) -> None:
        for row in rows:
            self._db.execute(
                "INSERT INTO task VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " device = excluded.device, payload = excluded.payload, answer = excluded.answer,"
                " state = excluded.state, bundle = excluded.bundle",
                (row.id, row.device, row.payload, row.answer, row.state, row.bundle),
            )
            self._rows[row.id] = row
