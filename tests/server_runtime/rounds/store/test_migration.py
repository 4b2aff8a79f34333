"""Files of runs that an earlier release wrote are opened and go on; those of a later one are not touched."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Recipe, Returns, Stats, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.planner import task_id
from fedwright.server_runtime.rounds.store.base import Position, evaluation_after
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_reader import open_run
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.present import present

SPEC = ModelSpec("mlp", (4,), 2)
# As the release before runs had an identity made it.
SCHEMA = """
CREATE TABLE run (one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL);
CREATE TABLE plan (
    round INTEGER NOT NULL, stage INTEGER NOT NULL, place INTEGER NOT NULL,
    device TEXT NOT NULL, task_id TEXT NOT NULL UNIQUE, task BLOB NOT NULL, assignment BLOB NOT NULL,
    PRIMARY KEY (round, stage, place)
);
CREATE TABLE stage (round INTEGER NOT NULL, stage INTEGER NOT NULL, PRIMARY KEY (round, stage));
CREATE TABLE note (round INTEGER NOT NULL, stage INTEGER NOT NULL, notes BLOB NOT NULL, PRIMARY KEY (round, stage));
CREATE TABLE reply (
    number INTEGER PRIMARY KEY, task_id TEXT NOT NULL UNIQUE, outcome TEXT NOT NULL, message BLOB, detail TEXT NOT NULL
);
CREATE TABLE absorbed (task_id TEXT PRIMARY KEY, round INTEGER NOT NULL, stage INTEGER NOT NULL);
CREATE TABLE closed (
    round INTEGER NOT NULL, stage INTEGER NOT NULL, state TEXT NOT NULL, metrics BLOB NOT NULL,
    PRIMARY KEY (round, stage)
);
"""
# Opens a copy of the file for every statement of the migration, in a process that is killed just before it.
KILLED = """
import itertools, os, shutil, signal, sqlite3, sys
from pathlib import Path
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore

old, connect = Path(sys.argv[1]), sqlite3.connect
for last in itertools.count(1):
    copy = old.with_name(f"killed-{last}.sqlite")
    shutil.copy(old, copy)
    child = os.fork()
    if not child:
        seen = itertools.count(1)
        def trace(statement):
            if next(seen) == last:
                os.kill(os.getpid(), signal.SIGKILL)
        def traced(*given, **named):
            db = connect(*given, **named)
            db.set_trace_callback(trace)
            return db
        sqlite3.connect = traced
        SqliteRoundStore(copy)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""
CONFIG = '[run]\nname = "night"\nrounds = 2\n[method]\nname = "fedavg"\n'


def write_old_run(folder: Path) -> None:
    """A finished run of two rounds with one device, without what later releases keep."""
    folder.mkdir(parents=True)
    db = sqlite3.connect(folder / "rounds.sqlite")
    db.executescript(SCHEMA)
    db.execute(
        "INSERT INTO run VALUES (1, ?)", (msgspec.msgpack.encode({"run": "night", "config": CONFIG, "spec": SPEC}),)
    )
    ref = make_ref(b"weights", inline=False)
    recipe = Recipe(batch=8, learning_rate=0.1, seed=3)
    for number in (1, 2, 3):
        name = task_id("night", Position(number, 0), "a")
        task: dict[str, Any] = {
            "type": "task",
            "task": name,
            "boot": "unsent",
            "run": "night",
            "round": number,
            "artifact": ref,
        }
        task |= {"weights": ref, "recipe": recipe, "returns": Returns(), "deadline_s": 5.0}
        stats = Stats(samples=3, steps=1, train_s=0.1, cpu_s=0.5, peak_rss_bytes=1, holdout=4, correct_before=number)
        update = Update(name, number, stats, make_ref(b"delta"))
        row = (number, 0, 0, "a", name, *map(msgspec.msgpack.encode, (task, Assignment(Structure(SPEC), recipe))))
        db.execute("INSERT INTO stage VALUES (?, 0)", (number,))
        db.execute("INSERT INTO plan VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO reply VALUES (?, ?, 'update', ?, '')", (number, name, msgspec.msgpack.encode(update)))
        if number < 3:
            db.execute("INSERT INTO absorbed VALUES (?, ?, 0)", (name, number))
            db.execute("INSERT INTO closed VALUES (?, 0, 'state', ?)", (number, msgspec.msgpack.encode({"loss": 0.5})))
    db.commit()
    db.close()


def test_a_run_of_the_first_release_is_opened_whole(tmp_path: Path) -> None:
    write_old_run(tmp_path / "night")
    past = open_run(tmp_path / "night")

    assert (past.rounds_done, past.complete, past.kind, past.config.run.rounds) == (2, True, "served", 2)
    [record] = past.devices.values()
    # 1 of 4 before the first round, 3 of 4 in the measurement at the end, which is no round of its own.
    assert (record.rounds, record.cpu_s) == (2, 1.5)
    assert (record.accuracy_before, record.accuracy_after) == (0.25, 0.75)


def test_its_measurement_leaves_the_place_of_the_round_that_may_follow(tmp_path: Path) -> None:
    write_old_run(tmp_path / "night")
    # Opened twice: what was brought up to date stays as it is.
    for _ in range(2):
        store = SqliteRoundStore(tmp_path / "night/rounds.sqlite")
        [measured] = present(store.plan(evaluation_after(2)))
        assert store.plan(Position(3, 0)) is None
        assert (measured.task.round, measured.task.evaluation) == (2, True)
        assert store.replies(evaluation_after(2)).keys() == {measured.task.task}
        # Ids of its tasks stay what they were, so that its devices know them.
        assert present(store.plan(Position(1, 0)))[0].task.task == task_id("night", Position(1, 0), "a")
        assert present(store.run()).identity == ""
        store.close()


def dump(path: Path) -> list[str]:
    """All that a file holds once it is up to date."""
    SqliteRoundStore(path).close()
    db = sqlite3.connect(path)
    try:
        return [f"version {db.execute('PRAGMA user_version').fetchone()[0]}", *db.iterdump()]
    finally:
        db.close()


def moved_rows(path: Path) -> list[object]:
    """What a file holds of all that the migration changes, without being brought up to date."""
    db = sqlite3.connect(path)
    try:
        version = db.execute("PRAGMA user_version").fetchone()
        return [version, *(db.execute(f"SELECT * FROM {table}").fetchall() for table in ("plan", "stage", "note"))]
    finally:
        db.close()


def test_a_migration_that_is_killed_before_any_of_its_statements_is_whole_or_not_begun_and_is_done_again(
    tmp_path: Path,
) -> None:
    write_old_run(tmp_path / "night")
    old = tmp_path / "night/rounds.sqlite"
    subprocess.run([sys.executable, "-c", KILLED, str(old)], check=True, timeout=300)
    copies = sorted(old.parent.glob("killed-*.sqlite"))
    before, left = moved_rows(old), [moved_rows(copy) for copy in copies]
    whole = dump(old)
    after = moved_rows(old)

    assert before != after
    assert [found for found in left if found not in (before, after)] == []
    # Killed before its last statements, and not at all.
    assert left.count(before) > 10
    assert after in left
    assert [dump(copy) for copy in copies] == [whole] * len(copies)


def test_a_simulation_of_the_first_release_is_known_by_its_files(tmp_path: Path) -> None:
    write_old_run(tmp_path / "night")
    (tmp_path / "night/seconds.txt").write_text("1 0.5\n")
    assert open_run(tmp_path / "night").kind == "simulated"


def test_a_run_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    write_old_run(tmp_path / "night")
    db = sqlite3.connect(tmp_path / "night/rounds.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RoundError, match="was written by a later release of Fedwright; update this one"):
        SqliteRoundStore(tmp_path / "night/rounds.sqlite")
