"""The round store in SQLite: write-ahead log, every save one transaction that is synced to disk."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Task, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Reply, RunRecord

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS plan (
    round INTEGER NOT NULL, stage INTEGER NOT NULL, place INTEGER NOT NULL,
    device TEXT NOT NULL, task_id TEXT NOT NULL UNIQUE, task BLOB NOT NULL, assignment BLOB NOT NULL,
    PRIMARY KEY (round, stage, place)
);
CREATE TABLE IF NOT EXISTS stage (round INTEGER NOT NULL, stage INTEGER NOT NULL, PRIMARY KEY (round, stage));
CREATE TABLE IF NOT EXISTS note (
    round INTEGER NOT NULL, stage INTEGER NOT NULL, notes BLOB NOT NULL, PRIMARY KEY (round, stage)
);
CREATE TABLE IF NOT EXISTS reply (
    number INTEGER PRIMARY KEY, task_id TEXT NOT NULL UNIQUE, outcome TEXT NOT NULL, message BLOB, detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS absorbed (
    task_id TEXT PRIMARY KEY, round INTEGER NOT NULL, stage INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS closed (
    round INTEGER NOT NULL, stage INTEGER NOT NULL, state TEXT NOT NULL, metrics BLOB NOT NULL,
    PRIMARY KEY (round, stage)
);
"""


class SqliteRoundStore:
    """A RoundStore in one file; with `sync` False it outlives the process but not a power cut (simulation)."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
        self._db.executescript(_SCHEMA)

    def save_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        known = self.run()
        if known is not None:
            raise RoundError(f"this store already holds run {known.run}; use another folder for run {record.run}")
        self._db.execute("INSERT INTO run VALUES (1, ?)", (msgspec.msgpack.encode(record),))

    def run(self) -> RunRecord | None:
        """See RoundStore."""
        row = self._db.execute("SELECT record FROM run").fetchone()
        return None if row is None else msgspec.msgpack.decode(row[0], type=RunRecord)

    def save_plan(self, position: Position, plan: Sequence[Planned], *, notes: bytes = b"") -> None:
        """See RoundStore."""
        rows = [_row(position, place, planned) for place, planned in enumerate(plan)]
        try:
            with transaction(self._db):
                self._db.execute("INSERT INTO stage VALUES (?, ?)", position)
                self._db.executemany("INSERT INTO plan VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                if notes:
                    self._db.execute("INSERT INTO note VALUES (?, ?, ?)", (*position, notes))
        except sqlite3.IntegrityError as err:
            raise RoundError(f"round {position.round} stage {position.stage} is planned already") from err

    def plan(self, position: Position) -> list[Planned] | None:
        """See RoundStore."""
        if self._db.execute("SELECT 1 FROM stage WHERE round = ? AND stage = ?", position).fetchone() is None:
            return None
        rows = self._db.execute(
            "SELECT device, task, assignment FROM plan WHERE round = ? AND stage = ? ORDER BY place", position
        )
        return [_planned(row) for row in rows]

    def notes(self, position: Position) -> bytes:
        """See RoundStore."""
        row = self._db.execute("SELECT notes FROM note WHERE round = ? AND stage = ?", position).fetchone()
        return b"" if row is None else bytes(row[0])

    def extend_plan(self, position: Position, more: Sequence[Planned]) -> None:
        """See RoundStore."""
        with transaction(self._db):
            self._add_to_plan(position, more)

    def save_reply(self, reply: Reply, *, retry: Planned | None = None) -> bool:
        """See RoundStore."""
        message = None if reply.update is None else msgspec.msgpack.encode(reply.update)
        with transaction(self._db):
            cursor = self._db.execute(
                "INSERT OR IGNORE INTO reply (task_id, outcome, message, detail) VALUES (?, ?, ?, ?)",
                (reply.task, reply.outcome, message, reply.detail),
            )
            saved = cursor.rowcount == 1
            if saved and retry is not None:
                where = self._db.execute("SELECT round, stage FROM plan WHERE task_id = ?", (reply.task,)).fetchone()
                self._add_to_plan(Position(*where), [retry])
        return saved

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        rows = [
            (reply.task, reply.outcome, msgspec.msgpack.encode(reply.update) if reply.update else None, reply.detail)
            for reply in replies
        ]
        try:
            with transaction(self._db):
                self._db.executemany("INSERT INTO reply (task_id, outcome, message, detail) VALUES (?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as err:
            raise RoundError("a task of this pool has a reply already; it cannot get another") from err

    def _add_to_plan(self, position: Position, more: Sequence[Planned]) -> None:
        """Put tasks at the end of a plan."""
        (places,) = self._db.execute("SELECT COUNT(*) FROM plan WHERE round = ? AND stage = ?", position).fetchone()
        rows = [_row(position, place, planned) for place, planned in enumerate(more, places)]
        self._db.executemany("INSERT INTO plan VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def replies(self, position: Position) -> dict[str, Reply]:
        """See RoundStore."""
        rows = self._db.execute(
            "SELECT reply.task_id, outcome, message, detail FROM reply JOIN plan USING (task_id)"
            " WHERE round = ? AND stage = ?",
            position,
        )
        return {row[0]: _reply(row) for row in rows}

    def reply(self, task: str) -> Reply | None:
        """See RoundStore."""
        row = self._db.execute("SELECT task_id, outcome, message, detail FROM reply WHERE task_id = ?", (task,))
        found = row.fetchone()
        return None if found is None else _reply(found)

    def is_open(self, task: str) -> bool:
        """See RoundStore."""
        row = self._db.execute(
            "SELECT 1 FROM plan LEFT JOIN reply USING (task_id) WHERE task_id = ? AND outcome IS NULL", (task,)
        )
        return row.fetchone() is not None

    def pending(self) -> list[tuple[Planned, Reply | None]]:
        """See RoundStore."""
        open_rows = self._db.execute(
            "SELECT device, task, assignment FROM plan LEFT JOIN reply USING (task_id) WHERE outcome IS NULL"
            " ORDER BY round, stage, place"
        )
        waiting: list[tuple[Planned, Reply | None]] = [(_planned(row), None) for row in open_rows]
        done_rows = self._db.execute(
            "SELECT device, task, assignment, reply.task_id, outcome, message, detail"
            " FROM reply JOIN plan USING (task_id) LEFT JOIN absorbed USING (task_id)"
            " WHERE outcome = 'update' AND absorbed.round IS NULL ORDER BY number"
        )
        return waiting + [(_planned(row[:3]), _reply(row[3:])) for row in done_rows]

    def close_stage(self, closed: Closed) -> None:
        """See RoundStore."""
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO closed VALUES (?, ?, ?, ?)",
                (*closed.position, closed.state, msgspec.msgpack.encode(closed.metrics)),
            )
            rows = [(task, *closed.position) for task in closed.absorbed]
            self._db.executemany("INSERT INTO absorbed VALUES (?, ?, ?)", rows)

    def closed(self) -> list[Closed]:
        """See RoundStore."""
        absorbed: dict[Position, list[str]] = {}
        for task, *position in self._db.execute("SELECT task_id, round, stage FROM absorbed ORDER BY rowid"):
            absorbed.setdefault(Position(*position), []).append(task)
        rows = self._db.execute("SELECT round, stage, state, metrics FROM closed ORDER BY round, stage")
        return [
            Closed(
                Position(round_, stage),
                state,
                msgspec.msgpack.decode(metrics, type=dict[str, float]),
                tuple(absorbed.get(Position(round_, stage), ())),
            )
            for round_, stage, state, metrics in rows
        ]

    def close(self) -> None:
        """See RoundStore."""
        self._db.close()


class transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK when the block raises."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *rest: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _row(position: Position, place: int, planned: Planned) -> tuple[Any, ...]:
    task, assignment = msgspec.msgpack.encode(planned.task), msgspec.msgpack.encode(planned.assignment)
    return (*position, place, planned.device, planned.task.task, task, assignment)


def _planned(row: tuple[Any, ...]) -> Planned:
    device, task, assignment = row
    return Planned(
        device=device,
        task=msgspec.msgpack.decode(task, type=Task),
        assignment=msgspec.msgpack.decode(assignment, type=Assignment),
    )


def _reply(row: tuple[Any, ...]) -> Reply:
    task, outcome, message, detail = row
    update = None if message is None else msgspec.msgpack.decode(message, type=Update)
    return Reply(task=task, outcome=outcome, update=update, detail=detail)
