"""The round store in SQL that SQLite and PostgreSQL both understand; every save is one act."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

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
from fedwright.server_runtime.rounds.store.database import Conflict, DamagedStore, Database, Row, Statements

T = TypeVar("T")
# More rounds than any run has.
_EVER = 2**62

# SQLite's; another database puts its own words for BLOB and for numbers that it gives by itself.
TABLES = """
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
_ADD_TO_PLAN = "INSERT INTO plan VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADD_REPLY = "INSERT INTO reply (task_id, outcome, message, detail) VALUES (?, ?, ?, ?)"


class SqlRoundStore:
    """A RoundStore in a database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def save_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        known = self.run()
        if known is not None:
            raise RoundError(f"this store already holds run {known.run}; use another folder for run {record.run}")
        self._db.act(lambda db: db.change("INSERT INTO run VALUES (1, ?)", (msgspec.msgpack.encode(record),)))

    def run(self) -> RunRecord | None:
        """See RoundStore."""
        rows = self._db.rows("SELECT record FROM run")
        return _decoded(rows[0][0], RunRecord) if rows else None

    def update_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        check_same_run(self.run(), record)
        self._db.act(lambda db: db.change("UPDATE run SET record = ?", (msgspec.msgpack.encode(record),)))

    def save_plan(self, position: Position, plan: Sequence[Planned], *, notes: bytes = b"") -> None:
        """See RoundStore."""
        rows = [_row(position, place, planned) for place, planned in enumerate(plan)]

        def save(db: Statements) -> None:
            db.change("INSERT INTO stage VALUES (?, ?)", position)
            db.change_each(_ADD_TO_PLAN, rows)
            if notes:
                db.change("INSERT INTO note VALUES (?, ?, ?)", (*position, notes))

        try:
            self._db.act(save)
        except Conflict as err:
            raise RoundError(f"round {position.round} stage {position.stage} is planned already") from err

    def plan(self, position: Position) -> list[Planned] | None:
        """See RoundStore."""
        rows = self._db.rows(
            "SELECT device, task, assignment FROM stage LEFT JOIN plan USING (round, stage)"
            " WHERE round = ? AND stage = ? ORDER BY place",
            position,
        )
        # A plan without tasks is a stage beside which nothing stands.
        return [_planned(row) for row in rows if row[0] is not None] if rows else None

    def notes(self, position: Position) -> bytes:
        """See RoundStore."""
        rows = self._db.rows("SELECT notes FROM note WHERE round = ? AND stage = ?", position)
        return bytes(rows[0][0]) if rows else b""

    def extend_plan(self, position: Position, more: Sequence[Planned]) -> None:
        """See RoundStore."""
        self._db.act(lambda db: _add_to_plan(db, position, more))

    def save_reply(self, reply: Reply, *, retry: Planned | None = None) -> bool:
        """See RoundStore."""

        def save(db: Statements) -> bool:
            saved = db.change(_ADD_REPLY + " ON CONFLICT DO NOTHING", _reply_row(reply)) == 1
            if saved and retry is not None:
                [where] = db.rows("SELECT round, stage FROM plan WHERE task_id = ?", (reply.task,))
                _add_to_plan(db, Position(*where), [retry])
            return saved

        return self._db.act(save)

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        rows = [_reply_row(reply) for reply in replies]
        try:
            self._db.act(lambda db: db.change_each(_ADD_REPLY, rows))
        except Conflict as err:
            raise RoundError("a task of this pool has a reply already; it cannot get another") from err

    def reject(self, tasks: Sequence[str], detail: str) -> None:
        """See RoundStore."""
        self._db.act(lambda db: _reject(db, tasks, detail))

    def replies(self, position: Position) -> dict[str, Reply]:
        """See RoundStore."""
        rows = self._db.rows(
            "SELECT reply.task_id, outcome, message, detail FROM reply JOIN plan USING (task_id)"
            " WHERE round = ? AND stage = ?",
            position,
        )
        return {row[0]: _reply(row) for row in rows}

    def reply(self, task: str) -> Reply | None:
        """See RoundStore."""
        found = self._db.rows("SELECT task_id, outcome, message, detail FROM reply WHERE task_id = ?", (task,))
        if found:
            return _reply(found[0])
        kept = self._db.rows("SELECT remnant FROM remnant WHERE last_task = ?", (task,))
        return _decoded(kept[0][0], Remnant).last if kept else None

    def is_open(self, task: str) -> bool:
        """See RoundStore."""
        return bool(
            self._db.rows(
                "SELECT 1 FROM plan LEFT JOIN reply USING (task_id) WHERE task_id = ? AND outcome IS NULL", (task,)
            )
        )

    def pending(self) -> list[tuple[Planned, Reply | None]]:
        """See RoundStore."""
        return _pending(self._db)

    def close_stage(self, closed: Closed) -> None:
        """See RoundStore."""
        rows = [(task, *closed.position) for task in closed.absorbed]
        metrics = msgspec.msgpack.encode(closed.metrics)

        def close(db: Statements) -> None:
            db.change("INSERT INTO closed VALUES (?, ?, ?, ?)", (*closed.position, closed.state, metrics))
            db.change_each("INSERT INTO absorbed (task_id, round, stage) VALUES (?, ?, ?)", rows)

        self._db.act(close)

    def closed(self) -> list[Closed]:
        """See RoundStore."""
        absorbed: dict[Position, list[str]] = {}
        for task, *position in self._db.rows("SELECT task_id, round, stage FROM absorbed ORDER BY rowid"):
            absorbed.setdefault(Position(*position), []).append(task)
        rows = self._db.rows("SELECT round, stage, state, metrics FROM closed ORDER BY round, stage")
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
        replaced = "INSERT INTO sum VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET record = excluded.record"
        self._db.act(lambda db: db.change(replaced, (name, record)))

    def sum(self, name: str) -> bytes | None:
        """See RoundStore."""
        rows = self._db.rows("SELECT record FROM sum WHERE name = ?", (name,))
        return bytes(rows[0][0]) if rows else None

    def end_sum(self, name: str, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        rows = [(outcome, message, detail, task) for task, outcome, message, detail in map(_reply_row, replies)]

        def end(db: Statements) -> None:
            db.change_each("UPDATE reply SET outcome = ?, message = ?, detail = ? WHERE task_id = ?", rows)
            db.change("DELETE FROM sum WHERE name = ?", (name,))

        self._db.act(end)

    def roll_back(self, number: int) -> None:
        """See RoundStore."""
        later = "round > ? OR (round = ? AND stage = ?)"
        place = (number, number, evaluation_after(number).stage)
        detail = f"the run was rolled back to round {number}"

        def forget_later(db: Statements) -> None:
            db.change("DELETE FROM sum")
            db.change(f"DELETE FROM reply WHERE task_id IN (SELECT task_id FROM plan WHERE {later})", place)
            for table in ("plan", "stage", "note", "closed", "absorbed"):
                db.change(f"DELETE FROM {table} WHERE {later}", place)
            waiting = [(planned.task.task, reply) for planned, reply in _pending(db)]
            _reject(db, [task for task, reply in waiting if reply is not None], detail)
            late = [_reply_row(Reply(task, "late", detail=detail)) for task, reply in waiting if reply is None]
            db.change_each(_ADD_REPLY, late)

        self._db.act(forget_later)

    def ended(self, *, before: int | None = None) -> list[EndedTask]:
        """See RoundStore."""
        rows = self._db.rows(
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

        def forget_tasks(db: Statements) -> None:
            planned_empty = _empty_stages(db)
            db.change_each(
                "INSERT INTO remnant VALUES (?, ?, ?) ON CONFLICT (device)"
                " DO UPDATE SET last_task = excluded.last_task, remnant = excluded.remnant",
                rows,
            )
            for table in ("plan", "reply", "absorbed"):
                db.change_each(f"DELETE FROM {table} WHERE task_id = ?", names)
            emptied = [place for place in _empty_stages(db) if place not in planned_empty]
            for table in ("note", "stage"):
                db.change_each(f"DELETE FROM {table} WHERE round = ? AND stage = ?", emptied)

        self._db.act(forget_tasks)

    def remnants(self, devices: Collection[str] | None = None) -> dict[str, Remnant]:
        """See RoundStore."""
        if devices is None:
            rows = self._db.rows("SELECT device, remnant FROM remnant ORDER BY device")
        else:
            one = "SELECT device, remnant FROM remnant WHERE device = ?"
            rows = [row for device in sorted(set(devices)) for row in self._db.rows(one, (device,))]
        return {device: _decoded(remnant, Remnant) for device, remnant in rows}

    def close(self) -> None:
        """See RoundStore."""
        self._db.close()


def _pending(db: Database | Statements) -> list[tuple[Planned, Reply | None]]:
    open_rows = db.rows(
        "SELECT device, task, assignment FROM plan LEFT JOIN reply USING (task_id) WHERE outcome IS NULL"
        " ORDER BY round, stage, place"
    )
    waiting: list[tuple[Planned, Reply | None]] = [(_planned(row), None) for row in open_rows]
    done_rows = db.rows(
        "SELECT device, task, assignment, reply.task_id, outcome, message, detail"
        " FROM reply JOIN plan USING (task_id) LEFT JOIN absorbed USING (task_id)"
        " WHERE outcome = 'update' AND absorbed.round IS NULL ORDER BY number"
    )
    return waiting + [(_planned(row[:3]), _reply(row[3:])) for row in done_rows]


def _add_to_plan(db: Statements, position: Position, more: Sequence[Planned]) -> None:
    """Put tasks at the end of a plan."""
    [(places,)] = db.rows("SELECT COUNT(*) FROM plan WHERE round = ? AND stage = ?", position)
    db.change_each(_ADD_TO_PLAN, [_row(position, place, planned) for place, planned in enumerate(more, places)])


def _reject(db: Statements, tasks: Sequence[str], detail: str) -> None:
    rows = [(detail, task) for task in tasks]
    db.change_each("UPDATE reply SET outcome = 'rejected', message = NULL, detail = ? WHERE task_id = ?", rows)


def _empty_stages(db: Statements) -> list[Row]:
    return db.rows("SELECT round, stage FROM stage LEFT JOIN plan USING (round, stage) WHERE task_id IS NULL")


def _reply_row(reply: Reply) -> Row:
    update = reply.without_bytes().update
    return reply.task, reply.outcome, None if update is None else msgspec.msgpack.encode(update), reply.detail


def _row(position: Position, place: int, planned: Planned) -> Row:
    task, assignment = msgspec.msgpack.encode(planned.task), msgspec.msgpack.encode(planned.assignment)
    return (*position, place, planned.device, planned.task.task, task, assignment)


def _planned(row: Row) -> Planned:
    device, task, assignment = row
    return Planned(
        device=device,
        task=_decoded(task, Task),
        assignment=_decoded(assignment, Assignment),
    )


def _reply(row: Row) -> Reply:
    task, outcome, message, detail = row
    update = None if message is None else _decoded(message, Update)
    return Reply(task=task, outcome=outcome, update=update, detail=detail)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as err:
        raise DamagedStore(f"what it holds is not readable: {err}") from err
