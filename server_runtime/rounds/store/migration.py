"""Brings a run's SQLite file of an earlier release up to date when it is opened; nothing that it holds is lost."""

import sqlite3
from pathlib import Path

import msgspec
from msgspec import structs

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Task
from fedwright.protocol.support.toml import BadToml, read_toml
from fedwright.server_runtime.rounds.store.base import RunRecord, evaluation_after
from fedwright.server_runtime.rounds.store.transaction import transaction

# 0: the first release. 1: the measurement at the end has a place of its own; what stays of forgotten tasks.
# 2: sums of changes that are under way.
VERSION = 2
_DEFAULT_ROUNDS = 10


def bring_up_to_date(db: sqlite3.Connection, path: Path, schema: str) -> None:
    """Make the tables of this release; RoundError for a file that a later one wrote."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise RoundError(f"{path} was written by a later release of Fedwright; update this one to open it")
    if version < VERSION:
        db.executescript(schema)
        with transaction(db):
            if version < 1:
                _move_measurement(db)
            db.execute(f"PRAGMA user_version = {VERSION}")


def _move_measurement(db: sqlite3.Connection) -> None:
    """Until version 1 the measurement at the end was in the place of the round after the last."""
    row = db.execute("SELECT record FROM run").fetchone()
    if row is None:
        return
    rounds = _rounds_of(msgspec.msgpack.decode(row[0], type=RunRecord).config)
    place, target = (rounds + 1, 0), evaluation_after(rounds)
    tasks = db.execute("SELECT task_id, task FROM plan WHERE round = ? AND stage = ?", place).fetchall()
    for name, payload in tasks:
        task = structs.replace(msgspec.msgpack.decode(payload, type=Task), round=rounds, evaluation=True)
        db.execute("UPDATE plan SET task = ? WHERE task_id = ?", (msgspec.msgpack.encode(task), name))
    for table in ("plan", "stage", "note"):
        db.execute(f"UPDATE {table} SET round = ?, stage = ? WHERE round = ? AND stage = ?", (*target, *place))


def _rounds_of(text: str) -> int:
    """How many rounds a config's text asks for."""
    try:
        return int(read_toml(text).get("run", {}).get("rounds", _DEFAULT_ROUNDS))
    except BadToml:
        return _DEFAULT_ROUNDS
