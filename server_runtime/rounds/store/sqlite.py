"""The round store in SQLite: write-ahead log, every save one transaction that is synced to disk."""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Task, Update
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.store.base import (
    Closed,
    EndedTask,
    Planned,
    Position,
    Remnant,
    Reply,
    RunRecord,
    check_same_run,
    evaluation_after,
)
from fedwright.server_runtime.rounds.store.migration import bring_up_to_date
from fedwright.server_runtime.rounds.store.transaction import transaction

T = TypeVar("T")
# More rounds than any run has.
_EVER = 2**62

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
CREATE TABLE IF NOT EXISTS remnant (device TEXT PRIMARY KEY, last_task TEXT, remnant BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sum (name TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS last_tasks ON remnant (last_task);
"""


class SqliteRoundStore:
    """A RoundStore in one file; with `sync` False it outlives the process but not a power cut (simulation)."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
            bring_up_to_date(self._db, path, _SCHEMA)
        except BaseException:
            self._db.close()
            raise

    def save_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        known = self.run()
        if known is not None:
            raise RoundError(f"this store already holds run {known.run}; use another folder for run {record.run}")
        self._db.execute("INSERT INTO run VALUES (1, ?)", (msgspec.msgpack.encode(record),))

    def run(self) -> RunRecord | None:
        """See RoundStore."""
        row = self._db.execute("SELECT record FROM run").fetchone()
        return None if row is None else _decoded(row[0], RunRecord)

    def update_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        check_same_run(self.run(), record)
        self._db.execute("UPDATE run SET record = ?", (msgspec.msgpack.encode(record),))

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
        with transaction(self._db):
            cursor = self._db.execute(
                "INSERT OR IGNORE INTO reply (task_id, outcome, message, detail) VALUES (?, ?, ?, ?)", _reply_row(reply)
            )
            saved = cursor.rowcount == 1
            if saved and retry is not None:
                where = self._db.execute("SELECT round, stage FROM plan WHERE task_id = ?", (reply.task,)).fetchone()
                self._add_to_plan(Position(*where), [retry])
        return saved

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        rows = [_reply_row(reply) for reply in replies]
        try:
            with transaction(self._db):
                self._db.executemany("INSERT INTO reply (task_id, outcome, message, detail) VALUES (?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as err:
            raise RoundError("a task of this pool has a reply already; it cannot get another") from err

    def reject(self, tasks: Sequence[str], detail: str) -> None:
        """See RoundStore."""
        with transaction(self._db):
            self._reject(tasks, detail)

    def _reject(self, tasks: Sequence[str], detail: str) -> None:
        rows = [(detail, task) for task in tasks]
        self._db.executemany(
            "UPDATE reply SET outcome = 'rejected', message = NULL, detail = ? WHERE task_id = ?", rows
        )

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
        if found is not None:
            return _reply(found)
        kept = self._db.execute("SELECT remnant FROM remnant WHERE last_task = ?", (task,)).fetchone()
        return None if kept is None else _decoded(kept[0], Remnant).last

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
                _decoded(metrics, dict[str, float]),
                tuple(absorbed.get(Position(round_, stage), ())),
            )
            for round_, stage, state, metrics in rows
        ]

    def save_sum(self, name: str, record: bytes) -> None:
        """See RoundStore."""
        self._db.execute("INSERT OR REPLACE INTO sum VALUES (?, ?)", (name, record))

    def sum(self, name: str) -> bytes | None:
        """See RoundStore."""
        row = self._db.execute("SELECT record FROM sum WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def end_sum(self, name: str, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        rows = [(outcome, message, detail, task) for task, outcome, message, detail in map(_reply_row, replies)]
        with transaction(self._db):
            self._db.executemany("UPDATE reply SET outcome = ?, message = ?, detail = ? WHERE task_id = ?", rows)
            self._db.execute("DELETE FROM sum WHERE name = ?", (name,))

    def roll_back(self, number: int) -> None:
        """See RoundStore."""
        later = "round > ?1 OR (round = ?1 AND stage = ?2)"
        place = (number, evaluation_after(number).stage)
        detail = f"the run was rolled back to round {number}"
        with transaction(self._db):
            self._db.execute("DELETE FROM sum")
            self._db.execute(f"DELETE FROM reply WHERE task_id IN (SELECT task_id FROM plan WHERE {later})", place)
            for table in ("plan", "stage", "note", "closed", "absorbed"):
                self._db.execute(f"DELETE FROM {table} WHERE {later}", place)
            waiting = [(planned.task.task, reply) for planned, reply in self.pending()]
            self._reject([task for task, reply in waiting if reply is not None], detail)
            rows = [_reply_row(Reply(task, "late", detail=detail)) for task, reply in waiting if reply is None]
            self._db.executemany("INSERT INTO reply (task_id, outcome, message, detail) VALUES (?, ?, ?, ?)", rows)

    def ended(self, *, before: int | None = None) -> list[EndedTask]:
        """See RoundStore."""
        rows = self._db.execute(
            "SELECT plan.round, plan.stage, device, task, assignment, task_id, outcome, message, detail"
            " FROM plan LEFT JOIN reply USING (task_id) LEFT JOIN absorbed USING (task_id)"
            " WHERE plan.round < ? AND (outcome != 'update' OR absorbed.round IS NOT NULL OR plan.stage = ?)"
            " ORDER BY plan.round, plan.stage, place",
            (_EVER if before is None else before, evaluation_after(0).stage),
        )
        return [
            EndedTask(Position(*row[:2]), _planned(row[2:5]), None if row[6] is None else _reply(row[5:]))
            for row in rows
        ]

    def forget(self, tasks: Sequence[str], remnants: Mapping[str, Remnant]) -> None:
        """See RoundStore."""
        names = [(task,) for task in tasks]
        rows = [
            (device, None if kept.last is None else kept.last.task, msgspec.msgpack.encode(kept))
            for device, kept in remnants.items()
        ]
        with transaction(self._db):
            self._db.executemany("INSERT OR REPLACE INTO remnant VALUES (?, ?, ?)", rows)
            places = {
                self._db.execute("SELECT round, stage FROM plan WHERE task_id = ?", name).fetchone() for name in names
            }
            for table in ("plan", "reply", "absorbed"):
                self._db.executemany(f"DELETE FROM {table} WHERE task_id = ?", names)
            for table in ("stage", "note"):
                self._db.executemany(
                    f"DELETE FROM {table} WHERE round = ?1 AND stage = ?2"
                    " AND NOT EXISTS (SELECT 1 FROM plan WHERE round = ?1 AND stage = ?2)",
                    [place for place in places if place is not None],
                )

    def remnants(self) -> dict[str, Remnant]:
        """See RoundStore."""
        rows = self._db.execute("SELECT device, remnant FROM remnant ORDER BY device")
        return {device: _decoded(remnant, Remnant) for device, remnant in rows}

    def close(self) -> None:
        """See RoundStore."""
        self._db.close()


def _reply_row(reply: Reply) -> tuple[Any, ...]:
    update = reply.without_bytes().update
    return reply.task, reply.outcome, None if update is None else msgspec.msgpack.encode(update), reply.detail


def _row(position: Position, place: int, planned: Planned) -> tuple[Any, ...]:
    task, assignment = msgspec.msgpack.encode(planned.task), msgspec.msgpack.encode(planned.assignment)
    return (*position, place, planned.device, planned.task.task, task, assignment)


def _planned(row: tuple[Any, ...]) -> Planned:
    device, task, assignment = row
    return Planned(
        device=device,
        task=_decoded(task, Task),
        assignment=_decoded(assignment, Assignment),
    )


def _reply(row: tuple[Any, ...]) -> Reply:
    task, outcome, message, detail = row
    update = None if message is None else _decoded(message, Update)
    return Reply(task=task, outcome=outcome, update=update, detail=detail)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as err:
        raise sqlite3.DatabaseError(f"what it holds is not readable: {err}") from err
